"""bridge: a model over several processes, driven from one. README.md has the life of a command;
reading order: launch.py, session.py, rank.py, wire.py, then attach.py, hub.py, tender.py."""
