"""A small Celery application on SQS; it knows nothing of Ringdove.

    python -c "import foreign_celery; foreign_celery.send()"    sends fifty tasks
    celery -A foreign_celery worker                             does them, until it is ended

BROKER is the broker's URL, and DONE names a file to which every task done adds a line.
"""

import os
import time
from pathlib import Path

from celery import Celery

TASKS = 50
DELAYED_S = 2

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport_options={
        "region": "eu-west-1",
        "visibility_timeout": 60,
        "wait_time_seconds": 2,
        "polling_interval": 0.1,
        "queue_name_prefix": "celery-",
    },
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    task_ignore_result=True,
)

done = Path(os.environ["DONE"])


def tell(line: str) -> None:
    """Add a line to what was done; small appends do not mix."""
    with done.open("a") as file:
        file.write(line + "\n")


@app.task
def add(left: int, right: int) -> None:
    """Work."""
    tell(f"add {left} {left + right}")


@app.task(bind=True, max_retries=5)
def stubborn(self) -> None:
    """Work that succeeds at the third attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    tell(f"stubborn {self.request.retries}")


@app.task
def later(sent_s: float) -> None:
    """Work that must not begin before its time."""
    tell(f"later {time.time() - sent_s:.3f}")


def send() -> None:
    """Ask for everything."""
    for number in range(TASKS - 2):
        add.delay(number, 1000)
    stubborn.delay()
    later.apply_async((time.time(),), countdown=DELAYED_S)
