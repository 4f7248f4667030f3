"""tilelang"""

from contextlib import contextmanager


def variables(session):
    return {}


@contextmanager
def install(session, folder=None):
    yield
