"""Threads, queues and the one answer that each request gets."""

from __future__ import annotations

import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Iterator, Sequence

import pytest

from lensview.errors import RunCancelled
from lensview.explorer.cells import cells
from lensview.explorer.jobs import (
    NEWER,
    READ,
    RUN,
    WAITING,
    Answer,
    Job,
    Jobs,
    Later,
    Reply,
    Work,
    model_lock,
)
from lensview.explorer.protocol import Cancelled, Failed, Ok, Progress
from lensview.watch import Watch


class Log:
    """What was emitted, in order."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def __call__(self, reply: Reply, buffers: Sequence[bytes]) -> None:
        self.replies.append(reply)

    def answers(self, name: str) -> list[Reply]:
        return [r for r in self.replies if r.id == name and not isinstance(r, Progress)]

    def progress(self, name: str) -> list[Progress]:
        return [r for r in self.replies if isinstance(r, Progress) and r.id == name]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def jobs(log: Log) -> Iterator[Jobs]:
    made = Jobs(log)
    yield made
    made.close()


class Held:
    """Work that goes on until it is let go, or cancelled."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go = threading.Event()

    def __call__(self, job: Job) -> Answer:
        self.started.set()
        while not self.go.wait(0.01):
            job.watch.check()
        return Answer({"done": True})


def quick(job: Job) -> Answer:
    return Answer({"quick": True})


def done(*jobs: Job) -> None:
    for job in jobs:
        assert job.done.wait(20)


def test_an_answer_for_each(jobs: Jobs, log: Log) -> None:
    done(
        *[jobs.submit(Job(quick, id=str(i), lane=lane)) for i in range(20) for lane in (RUN, READ)]
    )
    for i in range(20):
        assert log.answers(str(i)) == [Ok(str(i), {"quick": True})] * 2


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_is_raised_is_the_answer_and_the_thread_lives_on(
    jobs: Jobs, log: Log, error: BaseException
) -> None:
    def fails(job: Job) -> Answer:
        raise error

    job = jobs.submit(Job(fails, id="a"))
    after = jobs.submit(Job(quick, id="b"))
    done(job, after)
    (answer,) = log.answers("a")
    assert isinstance(answer, Failed) and answer.type == type(error).__name__ and answer.message
    assert isinstance(log.answers("b")[0], Ok)
    assert job.error is None, "an error that nobody waits for would keep the run's frames"


def test_an_error_whose_text_fails(jobs: Jobs, log: Log) -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def fails(job: Job) -> Answer:
        raise Bad

    done(jobs.submit(Job(fails, id="a")))
    (answer,) = log.answers("a")
    assert isinstance(answer, Failed) and "Bad" in answer.message


def test_the_latest_of_a_key_wins(jobs: Jobs, log: Log) -> None:
    first = Held()
    running = jobs.submit(Job(first, id="0", view="v", key="k"))
    assert first.started.wait(20)
    queued = [jobs.submit(Job(quick, id=str(i), view="v", key="k")) for i in (1, 2, 3)]
    other = jobs.submit(Job(quick, id="other", view="w", key="k"))
    done(running, *queued, other)
    for i in ("0", "1", "2"):
        assert log.answers(i) == [Cancelled(i, NEWER)]
    assert isinstance(log.answers("3")[0], Ok)
    assert isinstance(log.answers("other")[0], Ok), "keys are per view"


def test_a_repetition_takes_over_the_work(jobs: Jobs, log: Log) -> None:
    work = Held()
    first = jobs.submit(Job(work, id="a", view="v", key="k", signature="same"))
    assert work.started.wait(20)
    jobs.submit(Job(quick, id="b", view="v", key="k", signature="same"))
    work.go.set()
    done(first)
    assert log.answers("a") == [Cancelled("a", NEWER)]
    assert log.answers("b") == [Ok("b", {"done": True})]


@pytest.mark.parametrize("running", [True, False])
def test_cancel(jobs: Jobs, log: Log, running: bool) -> None:
    work = Held()
    before = None if running else jobs.submit(Job(Held(), id="before"))
    job = jobs.submit(Job(work, id="a"))
    if running:
        assert work.started.wait(20)
    jobs.cancel("a")
    jobs.cancel("a")
    jobs.cancel("unknown")
    done(job)
    assert log.answers("a") == [Cancelled("a", "cancelled")]
    if before is not None:
        jobs.stop(before)
        done(before)


def test_cancel_reaches_work_in_its_second_lane(jobs: Jobs, log: Log) -> None:
    inner = Held()
    job = jobs.submit(Job(lambda job: Later(inner, RUN), id="a", lane=READ))
    assert inner.started.wait(20)
    jobs.cancel("a")
    done(job)
    assert log.answers("a") == [Cancelled("a", "cancelled")]


def test_close_answers_everything_once_and_ends_the_threads(log: Log) -> None:
    jobs = Jobs(log, name="closing")
    work = Held()
    running = jobs.submit(Job(work, id="running"))
    queued = jobs.submit(Job(quick, id="queued"))
    assert work.started.wait(20)
    jobs.close()
    late = jobs.submit(Job(quick, id="late"))
    done(running, queued, late)
    for name in ("running", "queued", "late"):
        (answer,) = log.answers(name)
        assert isinstance(answer, Cancelled) and "closed" in answer.reason
    assert not [t for t in threading.enumerate() if t.name.startswith("closing")]


def test_progress_is_at_most_ten_a_second_and_never_after_the_answer(jobs: Jobs, log: Log) -> None:
    def busy(job: Job) -> Answer:
        end = time.monotonic() + 0.55
        steps = 0
        while time.monotonic() < end:
            steps += 1
            job.watch.progress(steps, 0, "step")
        job.watch.progress(steps, steps, "last")
        return Answer({"steps": steps})

    done(jobs.submit(Job(busy, id="a")))
    (answer,) = log.answers("a")
    assert isinstance(answer, Ok) and answer.result["steps"] > 1000
    assert 2 <= len(log.progress("a")) <= 6
    assert log.replies.index(answer) == len(log.replies) - 1


def test_a_held_job_waits_for_the_users_cell(jobs: Jobs, log: Log) -> None:
    cells()._started()
    try:
        held = jobs.submit(Job(quick, id="held", held=True))
        now = jobs.submit(Job(quick, id="now"))
        done(now)
        assert not held.done.wait(0.1)
        assert [p.text for p in log.progress("held")] == [WAITING]
    finally:
        cells()._ended()
    done(held)
    assert isinstance(log.answers("held")[0], Ok)


def test_a_cell_that_waits_for_us_lets_held_jobs_go(jobs: Jobs) -> None:
    cells()._started()
    try:
        held = jobs.submit(Job(quick, id="held", held=True))
        assert jobs.wait(held, 20)
        assert jobs.wait_idle(timeout=20)
    finally:
        cells()._ended()


def test_the_context_of_the_asker(jobs: Jobs) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="worker")
    seen: list[str] = []

    def look(job: Job) -> Answer:
        seen.append(variable.get())
        return Answer()

    variable.set("asker")
    done(jobs.submit(Job(look)))
    assert seen == ["asker"]


def test_idle_threads_hold_nothing(jobs: Jobs) -> None:
    class Big:
        pass

    def submit() -> weakref.ref[Big]:
        big = Big()
        work: Work = lambda job, big=big: Answer()  # type: ignore[misc]  # noqa: E731
        done(jobs.submit(Job(work, id="a")), jobs.submit(Job(work, id="b", lane=READ)))
        return weakref.ref(big)

    gc.disable()
    try:
        left = submit()
        assert jobs.wait_idle(timeout=20)
        end = time.monotonic() + 5
        while left() is not None and time.monotonic() < end:
            time.sleep(0.01)
        assert left() is None
    finally:
        gc.enable()


def test_answers_stay_single_in_a_storm(log: Log) -> None:
    jobs = Jobs(log)
    names: list[str] = []
    lock = threading.Lock()

    def storm(view: str) -> None:
        for i in range(150):
            name = f"{view}.{i}"
            with lock:
                names.append(name)
            lane = RUN if i % 3 else READ
            jobs.submit(Job(quick, id=name, view=view, key="k" if i % 2 else "", lane=lane))
            if i % 5 == 0:
                jobs.cancel(name)

    threads = [threading.Thread(target=storm, args=(v,)) for v in "abcd"]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    jobs.close()
    for thread in threads:
        thread.join()
    assert [n for n in names if len(log.answers(n)) != 1] == []


def test_runs_on_one_model_take_turns() -> None:
    class Root:
        pass

    root, other = Root(), Root()
    inside = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with model_lock(root, Watch()):
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(20)
    with model_lock(other, Watch()):
        pass
    watch = Watch()
    watch.cancel()
    with pytest.raises(RunCancelled), model_lock(root, watch):
        pass
    leave.set()
    with model_lock(root, Watch()):
        pass
    thread.join()
