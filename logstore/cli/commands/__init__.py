"""One module a command; `cli.COMMANDS` names them, `terminal.frame.CommandModule` says what each has."""
