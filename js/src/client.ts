/**
 * Requests to the kernel and their answers.
 *
 * Every call settles exactly once: with an answer, with `KernelError`, or with `CallCancelled`.
 * This module knows nothing of what is asked. Messages can be lost (hosts drop them under load),
 * so calls that may be repeated are sent again; calls that may not are reported through `doubt`.
 */

import type { Binary } from "./buffers";
import { later } from "./dom";
import type { Incoming, Method, Outgoing, Params, Progress, Results, State } from "./protocol";

/** The part of anywidget's model that the page uses. */
export interface Model {
  get(name: string): unknown;
  send(content: unknown): void;
  on(event: string, handler: (...given: never[]) => void): void;
  off(event: string, handler: (...given: never[]) => void): void;
}

export class KernelError extends Error {
  constructor(
    readonly type: string,
    message: string,
  ) {
    super(message);
    this.name = "KernelError";
  }
}

export class CallCancelled extends Error {
  override readonly name = "CallCancelled";
}

export interface Answer<M extends Method> {
  result: Results[M];
  buffers: readonly Binary[];
}

export interface Call<M extends Method> {
  answer: Promise<Answer<M>>;
  /** Ask the kernel to stop. The call still settles by the kernel's word, or after a grace. */
  cancel(): void;
  /** Stop waiting, at once. */
  drop(reason: string): void;
}

export interface CallOptions {
  /** Only the latest call with this key matters: an earlier one is cancelled. */
  key?: string;
  onProgress?: (progress: Progress) => void;
}

/** `busy`: something has no answer yet. `lost`: repeated and still nothing. */
export type Silence = "none" | "busy" | "lost";

export const TIMES = { busy: 400, tries: [5_000, 10_000, 20_000], doubt: 15_000, grace: 10_000 };

const REPEATABLE = new Set<Method>(["hello", "tree", "outputs", "sizes", "strips", "tile", "value", "views", "distribution", "norms", "names", "code"]);

interface Pending {
  ids: string[];
  method: Method;
  params: Record<string, unknown>;
  options: CallOptions;
  silence: Silence;
  timers: AbortController;
  /** Never mind how long it takes: it is being worked on. */
  stopBusy: () => void;
  resolve: (answer: { result: never; buffers: readonly Binary[] }) => void;
  reject: (error: Error) => void;
}

export class Client {
  onSilence: (silence: Silence) => void = () => undefined;
  onState: (state: State) => void = () => undefined;
  /** A call that may not be repeated has been without a word for a while. */
  onDoubt: () => void = () => undefined;

  private readonly view = randomId();
  private readonly pending = new Map<string, Pending>();
  private readonly byKey = new Map<string, Pending>();
  private count = 0;
  private silence: Silence = "none";

  constructor(
    private readonly model: Model,
    private readonly signal: AbortSignal,
  ) {
    const receive = (content: unknown, buffers?: readonly Binary[]): void => {
      this.receive(content, buffers ?? []);
    };
    model.on("msg:custom", receive);
    signal.addEventListener("abort", () => {
      model.off("msg:custom", receive);
      for (const call of new Set(this.pending.values())) {
        this.settle(call);
        call.reject(new CallCancelled("the view was closed"));
      }
    });
  }

  call<M extends Method>(method: M, params: Params[M], options: CallOptions = {}): Call<M> {
    const { promise, resolve, reject } = deferred<Answer<M>>();
    const call: Pending = {
      ids: [],
      method,
      params: params as Record<string, unknown>,
      options,
      silence: "none",
      timers: new AbortController(),
      stopBusy: () => undefined,
      resolve,
      reject,
    };
    const drop = (reason: string): void => {
      if (this.settle(call)) reject(new CallCancelled(reason));
    };
    if (this.signal.aborted) {
      reject(new CallCancelled("the view was closed"));
    } else {
      this.replace(call);
      this.send(call);
      this.watch(call);
    }
    return { answer: promise, drop, cancel: () => { this.cancel(call, drop); } };
  }

  /** Give the place of `call.options.key` to this call. */
  private replace(call: Pending): void {
    const { key } = call.options;
    if (key === undefined) return;
    const earlier = this.byKey.get(key);
    if (earlier && this.settle(earlier)) earlier.reject(new CallCancelled("a newer one replaced it"));
    this.byKey.set(key, call);
  }

  private send(call: Pending): void {
    this.count += 1;
    const id = `${this.view}.${this.count}`;
    call.ids.push(id);
    this.pending.set(id, call);
    const { method, params, options } = call;
    const message: Outgoing = {
      kind: "req", id, view: this.view, method, params, key: options.key ?? "",
    };
    this.model.send(message);
  }

  private watch(call: Pending): void {
    const { signal } = call.timers;
    call.stopBusy = later(signal, TIMES.busy, () => { this.mark(call, "busy"); });
    if (REPEATABLE.has(call.method)) {
      const wait = (attempt: number): void => {
        later(signal, TIMES.tries[attempt] ?? 0, () => {
          if (attempt + 1 >= TIMES.tries.length) {
            this.mark(call, "lost");
            return;
          }
          this.send(call);
          wait(attempt + 1);
        });
      };
      wait(0);
    } else {
      const wait = (): void => {
        later(signal, TIMES.doubt, () => {
          this.onDoubt();
          wait();
        });
      };
      wait();
    }
  }

  private cancel(call: Pending, drop: (reason: string) => void): void {
    const id = call.ids.at(-1);
    if (id === undefined || !this.pending.has(id)) return;
    const word = this.call("cancel", { id });
    const grace = (): void => {
      later(call.timers.signal, TIMES.grace, () => { drop("cancelled, without a word from the kernel"); });
    };
    word.answer.then(grace, grace);
  }

  private receive(content: unknown, buffers: readonly Binary[]): void {
    if (!isIncoming(content)) return;
    if (content.kind === "event") {
      this.onState(content.state);
      return;
    }
    const call = this.pending.get(content.id);
    if (!call) return;
    if (content.kind === "progress") {
      // With no total it is still waiting its turn, and the kernel busy with something else.
      if (content.total > 0) {
        call.stopBusy();
        this.mark(call, "none");
      }
      call.options.onProgress?.(content);
      return;
    }
    // The first of two tries is cancelled by the second: that is no answer to the call.
    if (content.kind === "cancelled" && content.id !== call.ids.at(-1)) return;
    this.settle(call);
    if (content.kind === "ok") call.resolve({ result: content.result as never, buffers });
    else if (content.kind === "error") call.reject(new KernelError(content.type, content.message));
    else call.reject(new CallCancelled(content.reason));
  }

  /** Forget the call. Returns whether it was still waiting. */
  private settle(call: Pending): boolean {
    const waiting = call.ids.some((id) => this.pending.delete(id));
    for (const id of call.ids) this.pending.delete(id);
    call.timers.abort();
    const { key } = call.options;
    if (key !== undefined && this.byKey.get(key) === call) this.byKey.delete(key);
    this.mark(call, "none");
    return waiting;
  }

  private mark(call: Pending, silence: Silence): void {
    call.silence = silence;
    const all = [...this.pending.values()].map((other) => other.silence);
    const now = all.includes("lost") ? "lost" : all.includes("busy") ? "busy" : "none";
    if (now === this.silence) return;
    this.silence = now;
    if (!this.signal.aborted) this.onSilence(now);
  }
}

function isIncoming(content: unknown): content is Incoming {
  return typeof content === "object" && content !== null && "kind" in content;
}

function deferred<T>(): {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (error: Error) => void;
} {
  let resolve: (value: T) => void = () => undefined;
  let reject: (error: Error) => void = () => undefined;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}

/** `crypto.randomUUID` exists on https and localhost only. */
function randomId(): string {
  const words = new Uint32Array(4);
  crypto.getRandomValues(words);
  return [...words].map((word) => word.toString(36)).join("");
}
