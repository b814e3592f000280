"""What every command reads and prints: options, tables, progress, units, templates, usage errors."""
