"""Results of MCP servers, made of blocks of content, as results of tools."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from rl.content import ContentPart, ImagePart, TextPart
from rl.tools.errors import ToolFault
from rl.tools.results import ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock


def read_result(result: CallToolResult) -> ToolResult:
    """What a server gave, as parts where there is more than text in it."""
    parts = [_part(block) for block in result.content]
    if not parts:
        return ToolResult(json=result.structured_content)
    if all(isinstance(part, TextPart) for part in parts):
        return ToolResult(text="\n".join(part.text for part in parts if isinstance(part, TextPart)))
    return ToolResult(parts=tuple(parts))


def _part(block: ContentBlock) -> ContentPart:
    """A block as a part; what is neither text nor an image is named and left out."""
    if block.type == "text":
        return TextPart(block.text)
    if block.type == "image":
        return ImagePart(_bytes(block.data), block.mime_type)
    if block.type == "audio":
        return TextPart(f"[{block.mime_type} left out]")
    if block.type == "resource_link":
        return TextPart(f"[{block.uri}]")
    text = getattr(block.resource, "text", None)
    return TextPart(f"[{block.resource.uri} left out]" if text is None else text)


def _bytes(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ToolFault(f"its image is no base64: {error}") from error
