"""What everything else rests on: errors, files, text formats, configs, choices. No torch here."""
