"""Tools, which a policy may call: a typed function under `tool`, a class with state per trajectory, or a tool of an MCP server.

A tool raises `ToolError` if called wrongly and `ToolMiss` if it finds nothing; the policy sees the reason and may try again. Any other
exception is a fault of the tool and makes the trajectory invalid.
"""

from rl.tools.python_tools import FunctionTool, tool
from rl.tools.tool import Rewarded, Tool, ToolError, ToolFault, ToolMiss, ToolResult

__all__ = ["FunctionTool", "Rewarded", "Tool", "ToolError", "ToolFault", "ToolMiss", "ToolResult", "tool"]
