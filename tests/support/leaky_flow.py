"""A flow whose tasks end in every way a task can end, each with a secret in its text. Workers import this module."""

import asyncio
import os
import sys

import httpx

import redrive

flow = redrive.Flow("leaky", params={"row": {"card": "Zq00x"}})
once = {"retry": None, "poison": 1}
DSN = "cannot log in: postgresql://etl:Zq77x@db/prod"


class Base(BaseException):
    pass


class Loud(Exception):
    def __str__(self):
        raise ValueError(DSN)


class Held:
    def __repr__(self):
        return DSN


ENDS = {}


def end(function):
    ENDS[function.__name__] = function
    return function


@end
def exits_with_text():
    sys.exit(DSN)


@end
def exits_with_dict():
    sys.exit({"password": "Zq77x"})


@end
def exits_late():
    sys.exit("." * 190 + " " + DSN)


@end
def exits_with_lines():
    sys.exit("cannot log in:\npassword:\n  Zq77xSecret9")


@end
def exits_with_field(row):
    sys.exit(f"cannot settle {row['card']}")


@end
def raises():
    raise ValueError(DSN)


@end
def raises_field(row):
    raise ValueError(f"cannot settle {row['card']}")


@end
def raises_base():
    raise Base(DSN)


@end
def raises_interrupt():
    raise KeyboardInterrupt(DSN)


@end
def raises_cancelled():
    raise asyncio.CancelledError(DSN)


@end
def raises_generator_exit():
    raise GeneratorExit(DSN)


@end
def raises_without_text():
    raise Loud(DSN)


@end
def raises_timeout():
    raise redrive.TaskTimeout(DSN)


@end
def raises_group():
    raise ExceptionGroup("several", [ValueError("Zq77x"), ValueError(DSN)])


@end
def raises_chain():
    with httpx.Client(trust_env=False) as client:
        client.get("http://svc:Zq77x#1@127.0.0.1/")


@end
def permanent():
    raise redrive.Permanent(DSN)


@end
def transient():
    raise redrive.Transient(DSN)


@end
def rejected():
    raise redrive.Reject(DSN)


@end
def discarded():
    raise redrive.Discard(DSN)


@end
def skipped():
    raise redrive.Skip(DSN)


@end
def branches():
    return redrive.Branch(DSN)


@end
def returns_object():
    return {DSN: Held()}


@end
def returns_no_list():
    return DSN


@end
def dies():
    os.write(1, DSN.encode())
    os._exit(3)


@end
def hangs():
    import time

    os.write(1, DSN.encode())
    time.sleep(600)


for name, function in ENDS.items():
    flow.task(function, name=name, **once, **({"timeout": 1, "grace": 1} if name == "hangs" else {}))
flow.task(lambda item: None, name="of_no_list", each="returns_no_list", **once)
flow.task(lambda: [1, 2, 3], name="numbers")


@flow.task(each="numbers", **once)
def child(item):
    sys.exit(DSN)


@flow.sensor(every=0.1, timeout=0.3)
def sensor():
    sys.exit(DSN)
