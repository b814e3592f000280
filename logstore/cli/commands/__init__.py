"""One module a command, by what the command is about.

* `topics`: which topics there are, their settings, their watermarks
* `records`: writing and reading, alone or as a group
* `maintenance`: what keeps a store small and whole, and looks inside it
* `copies`: from one store, database or table to another
* `tools`: what helps people: measure, estimate, look, try

`cli.COMMANDS` names them with their rooms; `terminal.frame.CommandModule` says what each has. They may import everything
that the library has, because a module is imported when its command is asked for. Called by `terminal.frame` alone.
"""
