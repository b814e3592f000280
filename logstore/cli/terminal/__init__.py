"""What every command says and hears: options, tables, progress, units, templates, usage errors."""
