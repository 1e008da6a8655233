"""Commands that put a policy to use: `policy serve` and `chat`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import HomeOption
from flows.cli.stages import TemperatureOption

if TYPE_CHECKING:
    from warehouse import Policy

policy_app = typer.Typer(help="Policies of a home.", no_args_is_help=True)
PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help='Its id; `flywheel sql "SELECT id FROM policies"` lists them.')]


@policy_app.command()
def serve(
    policy: PolicyArgument,
    home: HomeOption,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a key.")] = "127.0.0.1",
    api_key: Annotated[
        str | None, typer.Option(envvar="FLYWHEEL_API_KEY", help="Key that clients must send, as a bearer token or x-api-key.")
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="Store each conversation as a trajectory with its exact token ids.")] = False,
) -> None:
    """Serve a policy in the styles of OpenAI (/v1/chat/completions, /v1/responses) and Anthropic (/v1/messages) until Ctrl-C.

    Example: flywheel policy serve t1-rl --home runs/demo --port 8000 --record
    """
    found = _find(home, policy)
    from pydantic import ValidationError

    from flows.serving import serve_policy
    from rl.serving.server import ServingConfig
    from warehouse.errors import RequestError
    from warehouse.settings import first_error

    try:
        config = ServingConfig(host=host, port=port, api_key=api_key)
    except ValidationError as error:
        raise RequestError(f"{first_error(error)}: set --api-key or FLYWHEEL_API_KEY, or leave out --host.") from error
    serve_policy(home, found, config, record)


def chat(
    policy: PolicyArgument,
    home: HomeOption,
    tools: Annotated[
        str | None, typer.Option(metavar="ENVIRONMENT", help="Environment of the home whose tools the policy may call, e.g. search.")
    ] = None,
    temperature: TemperatureOption = 0.0,
) -> None:
    """Talk to a policy in the terminal; Ctrl-D ends.

    Example: flywheel chat t1-rl --home runs/demo --tools search
    """
    found = _find(home, policy)
    from flows.serving import chat as talk

    talk(home, found, tools, temperature)


def _find(home: Path, policy: str) -> Policy:
    """The policy. Raise RequestError if there is none, before slow imports."""
    from flows.lakes import open_lake, policy_of

    with open_lake(home) as lake:
        return policy_of(lake, policy)
