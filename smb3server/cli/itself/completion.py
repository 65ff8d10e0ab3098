"""``smb3server completion``: the script that teaches a shell to complete commands, options and names."""

from __future__ import annotations

import click

from smb3server.cli.main import COMPLETION_VARIABLE, PROGRAM

SHELLS = {
    "bash": f"share/bash-completion/completions/{PROGRAM}",
    "zsh": f"share/zsh/site-functions/_{PROGRAM}",
    "fish": f"share/fish/vendor_completions.d/{PROGRAM}.fish",
}
"""Shells, and where below /usr they look for the script."""


def script(shell: str) -> str:
    """Return the script for a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click knows all of ``SHELLS``
    # The script asks the program, so it needs no commands. ``source()`` would ask the bash of this machine for its
    # version; the script may be for another one.
    template = kind(click.Command(PROGRAM), {}, PROGRAM, COMPLETION_VARIABLE)
    return str(template.source_template % template.source_vars())


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    Shells complete commands, options and files, and names that a running server knows. The Debian package installs
    these scripts.

    \b
    Examples:
      smb3server completion bash >> ~/.bash_completion
      smb3server completion zsh > ~/.zfunc/_smb3server
      smb3server completion fish > ~/.config/fish/completions/smb3server.fish

    Bash needs the package bash-completion, zsh a folder of $fpath (in ~/.zshrc, before compinit: fpath+=~/.zfunc).
    """
    print(script(shell))
