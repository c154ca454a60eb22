"""The one exception whose message is meant for the person who started the program."""


class UserError(Exception):
    """A mistake in what the user gave: what is wrong and what to do, in one line.

    The command line prints it as ``train.py: error: ...`` without a traceback and exits with ``code``
    on every rank. Everything else that is raised is a bug and keeps its traceback.
    """

    code = 2
