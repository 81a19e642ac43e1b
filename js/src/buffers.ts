/** Turns what a host hands over as a message's buffer into floats. */

export type Binary = DataView | ArrayBuffer | ArrayBufferView;

/** An own copy: hosts give views at any offset, and a Float32Array needs one divisible by 4. */
export function floats(binary: Binary | undefined, count: number): Float32Array {
  if (binary === undefined) throw new Error("the kernel's message came without its numbers");
  const bytes = ArrayBuffer.isView(binary)
    ? new Uint8Array(binary.buffer, binary.byteOffset, binary.byteLength)
    : new Uint8Array(binary);
  if (bytes.byteLength !== count * 4) {
    throw new Error(`expected ${count * 4} bytes from the kernel, got ${bytes.byteLength}`);
  }
  const copy = new Float32Array(count);
  new Uint8Array(copy.buffer).set(bytes);
  return copy;
}
