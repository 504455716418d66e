"""The ground of everything else: errors, files, text formats, configs, choices. No torch here."""
