"""Print what a shell needs to complete commands, options and topics.

bash: eval "$(logstore completion bash)" in ~/.bashrc; zsh the same in ~/.zshrc; fish: logstore completion fish | source.
"""

from __future__ import annotations

import argparse

from logstore.cli.terminal.frame import completion_script
from logstore.cli.terminal.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def run(args: argparse.Namespace, out: Output) -> int:
    script = completion_script(args.shell)
    out.row({"shell": args.shell, "script": script}, script)
    return 0
