"""An MCP server that breaks its word, written by hand because the library's own would not let it: one JSON-RPC message a line."""

from __future__ import annotations

import json
import sys
from typing import Any

OBJECT: dict[str, Any] = {"type": "object", "properties": {"how": {"type": "string"}}, "required": ["how"]}
OUTPUT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
RESULTS: dict[str, Any] = {
    "wrong type": {"content": [], "structuredContent": {"count": "many"}},
    "no structure": {"content": [{"type": "text", "text": "5"}]},
    "no base64": {"content": [{"type": "image", "data": "%%%", "mimeType": "image/png"}], "structuredContent": {"count": 1}},
    "no image": {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}], "structuredContent": {"count": 1}},
    "no result": {"colour": "blue"},
    "truth": {"content": [], "structuredContent": {"count": 3}},
}
TOOLS = {
    "good": [{"name": "lie", "inputSchema": OBJECT, "outputSchema": OUTPUT}],
    "name": [{"name": "two words", "inputSchema": OBJECT}],
    "answer": [{"name": "answer", "inputSchema": OBJECT}],
    "schema": [{"name": "lie", "inputSchema": {"type": "object", "properties": {"how": {"type": "strange"}}}}],
    "none": [],
}


def answer(request: dict[str, Any], kind: str) -> dict[str, Any]:
    """What is sent back; an unknown method is refused, as an old server refuses new ones."""
    method = request["method"]
    if method == "initialize":
        capabilities = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        return {"result": capabilities | {"serverInfo": {"name": "liar", "version": "1"}}}
    if method == "tools/list":
        return {"result": {"tools": TOOLS[kind]}}
    if method == "tools/call":
        return {"result": RESULTS[request["params"]["arguments"]["how"]]}
    return {"error": {"code": -32601, "message": "no such method"}}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"]} | answer(message, sys.argv[1])), flush=True)
