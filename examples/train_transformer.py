"""Trains a small transformer on synthetic text, on the CPU, importing only jax.

    python examples/train_transformer.py --seconds 30
    fleetscope run -- python examples/train_transformer.py --seconds 30

Two layers, 128 wide, 4 heads, next-token loss on a made-up language, Adam, rematerialised blocks. A loader makes
batches between steps; `--step-ms` makes steps last at least so long by a slower loader, as a starved pipeline would.
With --layers, --width and --batch the same program is made smaller or larger. `--record FILE` notes, by the program's
own watch, when each of its computations ran.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp

HEADS, VOCABULARY, LENGTH = 4, 256, 64


def init(key, layer_count, width):
    def matrix(key, rows, columns):
        return jax.random.normal(key, (rows, columns)) * rows**-0.5

    keys = iter(jax.random.split(key, 2 + 4 * layer_count))
    layers = [
        {
            "qkv": matrix(next(keys), width, 3 * width),
            "out": matrix(next(keys), width, width),
            "up": matrix(next(keys), width, 4 * width),
            "down": matrix(next(keys), 4 * width, width),
            "norm1": jnp.ones(width),
            "norm2": jnp.ones(width),
        }
        for _ in range(layer_count)
    ]
    embed, place = matrix(next(keys), VOCABULARY, width), matrix(next(keys), LENGTH, width)
    return {"embed": embed, "place": place, "layers": layers}


def normalise(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


@jax.checkpoint
def block(layer, x):
    batch, length, width = x.shape
    with jax.named_scope("attention"):
        qkv = normalise(x, layer["norm1"]) @ layer["qkv"]
        q, k, v = (part.reshape(batch, length, HEADS, -1) for part in jnp.split(qkv, 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        x = x + mixed.reshape(batch, length, width) @ layer["out"]
    with jax.named_scope("mlp"):
        return x + jax.nn.gelu(normalise(x, layer["norm2"]) @ layer["up"]) @ layer["down"]


def loss_of(params, tokens):
    x = params["embed"][tokens[:, :-1]] + params["place"][: tokens.shape[1] - 1]
    for layer in params["layers"]:
        x = block(layer, x)
    logits = jax.nn.log_softmax(x @ params["embed"].T)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, moments, tokens, number):
    loss, grads = jax.value_and_grad(loss_of)(params, tokens)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, moments[1], grads)
    rate = 3e-3 * min(1.0, 128 / params["embed"].shape[1]) * jnp.minimum(1.0, (number + 1) / 20)
    params = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return params, (mean, square), loss


@functools.partial(jax.jit, static_argnums=1)
def make_batch(key, size):
    """A language with a rule: each token is the one before it times 5 plus 3, now and then a random one."""
    first, noise, where = jax.random.split(key, 3)
    start = jax.random.randint(first, (size,), 0, VOCABULARY)
    random = jax.random.randint(noise, (size, LENGTH + 1), 0, VOCABULARY)
    slip = jax.random.bernoulli(where, 0.05, (size, LENGTH + 1))

    def advance(token, at):
        token = jnp.where(slip[:, at], random[:, at], (token * 5 + 3) % VOCABULARY)
        return token, token

    return jax.lax.scan(advance, start, jnp.arange(LENGTH + 1))[1].T


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps; 0: see --seconds")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long; 0 with --steps 0: never")
    parser.add_argument("--step-ms", type=float, default=60, help="shortest time from step to step")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--record", help="file for a line `program begin end` (ns since 1970) a computation")
    args = parser.parse_args()

    key = jax.random.key(args.seed)
    params = init(key, args.layers, args.width)
    zeros = jax.tree.map(jnp.zeros_like, params)
    moments = (zeros, jax.tree.map(jnp.zeros_like, params))
    began = due = time.monotonic()
    number = 0
    loss = jnp.float32(jnp.nan)

    def wanted():
        return not (
            (args.steps and number >= args.steps) or (args.seconds and time.monotonic() - began >= args.seconds)
        )

    record = []

    def run(program, *operands):
        """Calls a jitted function; with --record waits for its result, as only then its end can be noted."""
        begin = time.time_ns()
        result = program(*operands)
        if args.record:
            jax.block_until_ready(result)
            record.append(f"{program.__name__} {begin} {time.time_ns()}\n")
        return result

    try:
        while wanted():
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                with jax.profiler.TraceAnnotation("data_wait"):
                    tokens = run(make_batch, jax.random.fold_in(key, number), args.batch)
                    time.sleep(max(0.0, due - time.monotonic()))
                    due = max(due + args.step_ms / 1e3, time.monotonic())
                params, moments, loss = run(train_step, params, moments, tokens, number)
                loss.block_until_ready()
            number += 1
            if not args.quiet and number % 50 == 0:
                print(f"step {number} loss {float(loss):.3f}", flush=True)
    except KeyboardInterrupt:
        pass
    if args.record:
        with open(args.record, "w", encoding="utf-8") as file:
            file.writelines(record)
    print(f"{number} steps in {time.monotonic() - began:.1f} s, loss {float(loss):.3f}", flush=True)


if __name__ == "__main__":
    main()
