"""``smb3server completion``: the script that teaches a shell to complete commands, options and names."""

from __future__ import annotations

import click

from smb3server.cli.main import COMPLETION_VARIABLE, PROGRAM


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    Shells complete commands, options and files, and names that a running server knows.

    \b
    Examples:
      smb3server completion bash >> ~/.bash_completion
      smb3server completion zsh > ~/.zfunc/_smb3server
      smb3server completion fish > ~/.config/fish/completions/smb3server.fish

    Bash needs the package bash-completion, zsh a folder of $fpath (in ~/.zshrc, before compinit: fpath+=~/.zfunc).
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # the choices above are click's own shells
    template = kind(context.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE)
    # ``source()`` would ask the bash of this machine for its version; the script may be for another one.
    print(template.source_template % template.source_vars())
