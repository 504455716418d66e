"""What a sweep measures: statistics, the sweep file, plots and the report page."""
