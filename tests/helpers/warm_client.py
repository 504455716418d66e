"""Stands in for the program `posgap` where many processes of it are begun: see `posgap_on_path` in warm.py.

Has the tests' process fork the command, with the streams, environment and folder of this one, and ends as it does.
A signal to this process is one to the command, SIGKILL too.
"""

import json
import os
import signal
import socket
import sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["POSGAP_WARM"])
socket.send_fds(connection, [b"\n"], [0, 1, 2])
connection.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode() + b"\n")
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
code = int(connection.recv(16) or 1)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
