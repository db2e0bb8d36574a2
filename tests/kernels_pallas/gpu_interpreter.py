"""Two constructs that JAX's interpreter of Mosaic GPU kernels lacks, for tests only.

The kernels that ship multiply a left operand in registers (`wgmma`), and add into an
accumulator that starts from registers (`pl.run_state` with `plgpu.ACC.init`). With both
taught to the interpreter, the tests run the very kernels that are compiled for the GPU.

The race detector ignores what `wgmma` itself reads. With `touch=True` every operand in
shared memory is also read once as an ordinary load, so that a missing `barrier_wait` is
found; the fence that follows can hide a missing `commit_smem`, which only
`touch=False` finds. Tests run in both modes.

This patches private names of JAX. `install` returns False where they are not as known.
"""

import functools

_mode = {"touch": True}


def install(touch: bool = True) -> bool:
    """Teach the interpreter both constructs; whether that was possible."""
    _mode["touch"] = touch
    try:
        from jax._src import callback, core
        from jax._src.pallas.mosaic_gpu import core as mosaic
        from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks as device
        from jax._src.pallas.mosaic_gpu.interpret import jaxpr_interpret
        from jax._src.pallas.mosaic_gpu.interpret import shared_memory as memory
        from jax._src.state import discharge, types

        interpreter = jaxpr_interpret.JaxprInterpreter
        base, base_wgmma = interpreter.interpret, interpreter._interpret_wgmma_ref_p
    except (ImportError, AttributeError):
        return False
    if getattr(interpreter, "knows_registers", False):
        return True
    registers = mosaic.MemorySpace.REGS

    def is_ref(aval):
        return isinstance(aval, types.AbstractRef)

    def here(self, source_info):
        return {
            "mesh_location": self.mesh_location,
            "thread": self.thread,
            "source_info": source_info,
        }

    def allocate(self, token, value, source_info):
        token, request = device.call_make_allocation_request_array(
            token=token,
            compute_unit=self.thread,
            memory_space_id=memory.get_memory_space_idx(registers),
            initial_ref_count=1,
        )
        return device.call_allocate_buffer(
            token=token,
            allocation_request_as_array=request,
            value=value,
            **here(self, source_info),
        )

    def free(self, token, key, source_info):
        return device.call_deallocate_buffer(
            token=token, allocation_key_as_array=key, **here(self, source_info)
        )

    def read(self, token, key, aval, transforms, source_info):
        return device.call_get(
            token=token,
            result_shape_and_dtype=aval,
            allocation_key_as_array=key,
            transforms=transforms,
            **here(self, source_info),
        )

    def touch_operands(self, eqn, token, values):
        trees = [eqn.params[f"{name}_transforms_tree"] for name in ("acc", "a", "b")]
        leaves = values[3:]
        for position, tree in enumerate(trees):
            count = tree.num_leaves if tree is not None else 0
            mine, leaves = leaves[:count], leaves[count:]
            aval = eqn.invars[position].aval
            if not position or not is_ref(aval) or aval.memory_space == registers:
                continue
            transforms = () if tree is None else tuple(tree.unflatten(mine))
            seen = types.TransformedRef(aval, transforms).type if transforms else aval
            seen = core.ShapedArray(seen.shape, seen.dtype)
            token, _ = read(
                self, token, values[position], seen, transforms, eqn.source_info
            )
        return callback.io_callback(
            functools.partial(device.commit_smem, source_info=eqn.source_info),
            device.TOKEN_SHAPE_DTYPE,
            token=token,
            mesh_location=self.mesh_location,
            thread=self.thread,
        )

    def wgmma(self, eqn, token, get_invals):
        values, key = list(get_invals()), None
        if _mode["touch"]:
            token = touch_operands(self, eqn, token, values)
        if not is_ref(eqn.invars[1].aval):
            token, key = allocate(self, token, values[1], eqn.source_info)
            values[1] = key
        token, out = base_wgmma(self, eqn, token, lambda: values)
        if key is not None:
            token = free(self, token, key, eqn.source_info)
        return token, out

    def run_state(self, eqn, token, values):
        inner, source_info = eqn.params["jaxpr"], eqn.source_info
        keys, owned = [], []
        for inside, outside, key in zip(inner.invars, eqn.invars, values, strict=True):
            mine = is_ref(inside.aval) and not is_ref(outside.aval)
            if mine:
                token, key = allocate(self, token, key, source_info)
            keys.append(key)
            owned.append(mine)
        token, _ = self.interpret(inner, token, *keys)
        results = []
        for inside, key, mine in zip(inner.invars, keys, owned, strict=True):
            result = key
            if mine:
                aval = inside.aval.inner_aval
                token, result = read(self, token, key, aval, (), source_info)
                token = free(self, token, key, source_info)
            results.append(result)
        return token, results

    def interpret(self, jaxpr, token, *args):
        if not any(e.primitive is discharge.run_state_p for e in jaxpr.eqns):
            return base(self, jaxpr, token, *args)
        known = dict(zip(jaxpr.constvars + jaxpr.invars, args, strict=True))

        def value(atom):
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        def flush(token, pending):  # the ordinary equations since the last one
            outs = [
                v for e in pending for v in e.outvars if not isinstance(v, core.DropVar)
            ]
            part = jaxpr.replace(
                constvars=[],
                invars=list(known),
                outvars=outs,
                eqns=pending,
                debug_info=jaxpr.debug_info.with_unknown_names(),
            )
            token, results = base(self, part, token, *known.values())
            known.update(zip(outs, results, strict=True))
            return token

        pending = []
        for e in jaxpr.eqns:
            if e.primitive is not discharge.run_state_p:
                pending.append(e)
                continue
            token, pending = flush(token, pending), []
            token, results = run_state(self, e, token, [value(a) for a in e.invars])
            for out, result in zip(e.outvars, results, strict=True):
                if not isinstance(out, core.DropVar):
                    known[out] = result
        token = flush(token, pending)
        return token, [value(a) for a in jaxpr.outvars]

    interpreter.interpret = interpret
    interpreter._interpret_wgmma_ref_p = wgmma
    interpreter.knows_registers = True
    return True
