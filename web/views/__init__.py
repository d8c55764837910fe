"""View models: turn reports, rows and settings into texts with units, table rows and chart shapes for the templates."""
