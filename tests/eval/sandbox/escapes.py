"""Escapes and abuses, each a program of one of the three text files; see their first lines."""

from __future__ import annotations

from pathlib import Path

from tests.eval.programs import read_programs

PRELUDE = """
import ctypes, errno, os, resource, shutil, signal, socket, stat, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def harm(what=""):
    print("HARM", what, flush=True)

def attempt(action, what=""):
    try:
        action()
    except (OSError, ValueError, MemoryError):
        return
    harm(what)

def call(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(number, *arguments)
"""
"""What each program begins with, after the names of the canaries (canaries.py)."""

_FOLDER = Path(__file__).parent
REACHING = read_programs(_FOLDER / "reaching.txt")
ESCAPES = read_programs(_FOLDER / "escapes.txt")
ABUSES = read_programs(_FOLDER / "abuses.txt")
