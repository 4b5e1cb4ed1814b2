"""HLO texts in every notation XLA's parser took in the last two years, one feature each."""

ADD = """%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

"""
LOOP = """%condition {
  %c.in = (s32[], f32[8]) parameter(0)
  %c.i = s32[] get-tuple-element(%c.in), index=0
  %c.n = s32[] constant(5)
  ROOT %c.less = pred[] compare(%c.i, %c.n), direction=LT
}

%body {
  %b.in = (s32[], f32[8]) parameter(0)
  %b.i = s32[] get-tuple-element(%b.in), index=0
  %b.one = s32[] constant(1)
  %b.next = s32[] add(%b.i, %b.one)
  %b.x = f32[8] get-tuple-element(%b.in), index=1
  ROOT %b.out = (s32[], f32[8]) tuple(%b.next, %b.x)
}

"""
P = "  %p = f32[8]{0} parameter(0)\n"


def module(lines: str, before: str = "", header: str = "num_partitions=8", inputs: str = P, behind: str = "") -> str:
    return f"HloModule m, {header}\n\n{before}ENTRY %main {{\n{inputs}{lines}}}\n{behind}"


def reduction(attributes: str) -> str:
    return module(f"  ROOT %r = f32[8]{{0}} all-reduce(%p), {attributes}, to_apply=%add\n", ADD)


GROUPS = {
    "lists": reduction("channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true"),
    "lists with spaces": reduction(
        "channel_id=1, replica_groups={{0, 1}, {2,3}, {4,5},{6,7}}, use_global_device_ids=true"
    ),
    "lists out of order": reduction(
        "channel_id=1, replica_groups={{7,0},{1,6},{5,2},{3,4}}, use_global_device_ids=true"
    ),
    "iota": reduction("channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true"),
    "iota transposed": reduction("channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true"),
    "iota of three": reduction("channel_id=1, replica_groups=[2,4]<=[2,2,2]T(2,0,1), use_global_device_ids=true"),
    "mesh and axis": reduction("channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b'}, use_global_device_ids=true"),
    "mesh and outer axis": reduction(
        "channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'a'}, use_global_device_ids=true"
    ),
    "mesh and both axes": reduction(
        "channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b','a'}, use_global_device_ids=true"
    ),
    "mesh and sub-axis": reduction(
        "channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}, use_global_device_ids=true"
    ),
    "mesh and minor sub-axis": reduction(
        "channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b':(2)2,'a'}, use_global_device_ids=true"
    ),
    "mesh of devices": reduction(
        "channel_id=1, replica_groups=mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'a'}, use_global_device_ids=true"
    ),
    "mesh of transposed devices": reduction(
        "channel_id=1, replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}, use_global_device_ids=true"
    ),
    "gather": module(
        "  ROOT %g = f32[32]{0} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}, "
        "use_global_device_ids=true\n"
    ),
    "scatter": module(
        "  ROOT %s = f32[2]{0} reduce-scatter(%p), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}, "
        "use_global_device_ids=true, to_apply=%add\n",
        ADD,
    ),
    "exchange": module(
        "  ROOT %e = f32[8]{0} all-to-all(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}\n"
    ),
    "exchange of a tuple": module(
        "  ROOT %e = (f32[8]{0}, f32[8]{0}) all-to-all(%p, %p), "
        "channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}\n"
    ),
    "broadcast": module("  ROOT %b = f32[8]{0} collective-broadcast(%p), replica_groups={{0,1},{2,3}}, channel_id=1\n"),
    "ragged exchange": module(
        "  %z = s64[2]{0} constant({0, 4})\n"
        "  ROOT %e = f32[8]{0} ragged-all-to-all(%p, %p, %z, %z, %z, %z), channel_id=1, "
        "replica_groups={{0,1},{2,3},{4,5},{6,7}}\n"
    ),
}

TEXTS = {
    "replicas of all": reduction("replica_groups={}"),
    "permute": module(
        "  ROOT %c = f32[8]{0} collective-permute(%p), channel_id=1, source_target_pairs={{0,1},{1,0}}\n"
    ),
    "permute of two": module(
        "  ROOT %c = (f32[8], f32[8]) collective-permute(%p, %p), channel_id=1, source_target_pairs={{0,1},{1,0}}\n"
    ),
    "permute started": module(
        "  %s = (f32[8], f32[8], u32[], u32[]) collective-permute-start(%p), channel_id=1, "
        "source_target_pairs={{0,1},{1,0}}\n  ROOT %d = f32[8] collective-permute-done(%s)\n"
    ),
    "gather started": module(
        "  %s = (f32[8], f32[32]) all-gather-start(%p), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}, "
        "use_global_device_ids=true\n  ROOT %d = f32[32] all-gather-done(%s)\n"
    ),
    "reduction started": module(
        "  %s = f32[8] all-reduce-start(%p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, "
        "to_apply=%add\n  ROOT %d = f32[8] all-reduce-done(%s)\n",
        ADD,
    ),
    "async, long": module(
        "  %s = ((f32[8]), f32[2], s32[]) async-start(%p), calls=%wrapped\n"
        "  %u = ((f32[8]), f32[2], s32[]) async-update(%s)\n"
        "  ROOT %d = f32[2] async-done(%u)\n",
        ADD + "%wrapped {\n  %w.p = f32[8] parameter(0)\n  ROOT %w = f32[2] reduce-scatter(%w.p), channel_id=1, "
        "replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true, to_apply=%add\n}\n\n",
    ),
    "async, short": module(
        "  %s = ((f32[8]), f32[4], s32[]) slice-start(%p), slice={[0:4]}\n"
        "  %u = ((f32[8]), f32[4], s32[]) slice-update(%s)\n"
        "  ROOT %d = f32[4] slice-done(%u)\n"
    ),
    "async, short with computation": module(
        "  %s = ((f32[8]), f32[2], s32[]) reduce-scatter-start(%p), channel_id=1, replica_groups=[2,4]<=[8], "
        "dimensions={0}, use_global_device_ids=true, to_apply=%add\n  ROOT %d = f32[2] reduce-scatter-done(%s)\n",
        ADD,
    ),
    "async on a thread": module(
        '  %s = ((f32[8]), f32[8], s32[]) call-start(%p), async_execution_thread="sparsecore", to_apply=%other\n'
        "  ROOT %d = f32[8] call-done(%s)\n",
        '%other {\n  %o.p = f32[8] parameter(0)\n  ROOT %o = f32[8] negate(%o.p)\n}, execution_thread="sparsecore"\n\n',
    ),
    "custom call started": module(
        '  %s = ((f32[8]), f32[8], s32[]) custom-call-start(%p), custom_call_target="kernel"\n'
        "  ROOT %d = f32[8] custom-call-done(%s)\n"
    ),
    "copy started": module(
        "  %s = (f32[8]{0:S(1)}, f32[8]{0}, u32[]) copy-start(%p)\n  ROOT %d = f32[8]{0:S(1)} copy-done(%s)\n"
    ),
    "copy started across programs": module(
        "  %s = (f32[8]{0:S(1)}, f32[8]{0}, u32[]) copy-start(%p), cross_program_prefetch_index=0\n"
        "  ROOT %d = f32[8]{0:S(1)} copy-done(%s)\n"
    ),
    "send and receive": module(
        "  %t = token[] after-all()\n"
        "  %s = (f32[8]{0}, u32[], token[]) send(%p, %t), channel_id=1, is_host_transfer=true\n"
        "  %sd = token[] send-done(%s), channel_id=1, is_host_transfer=true\n"
        "  %r = (f32[8]{0}, u32[], token[]) recv(%t), channel_id=2, is_host_transfer=true\n"
        "  ROOT %rd = (f32[8]{0}, token[]) recv-done(%r), channel_id=2, is_host_transfer=true\n"
    ),
    "send and receive between devices": module(
        "  %t = token[] after-all()\n"
        "  %s = (f32[8]{0}, u32[], token[]) send(%p, %t), channel_id=1, "
        'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1}}"}\n'
        "  %sd = token[] send-done(%s), channel_id=1\n"
        "  %r = (f32[8]{0}, u32[], token[]) recv(%t), channel_id=1, control-predecessors={%s}\n"
        "  ROOT %rd = (f32[8]{0}, token[]) recv-done(%r), channel_id=1\n"
    ),
    "infeed and outfeed": module(
        "  %t = token[] after-all()\n"
        "  %i = ((f32[8]{0}, s32[]), token[]) infeed(%t)\n"
        '  ROOT %o = token[] outfeed(%p, %t), outfeed_shape=f32[8]{0}, outfeed_config="x"\n'
    ),
    "bounded dynamic shape": module(
        "  %n = s32[] constant(3)\n  %d = f32[<=8] set-dimension-size(%p, %n), dimensions={0}\n"
        "  ROOT %g = s32[] get-dimension-size(%d), dimensions={0}\n"
    ),
    "unbounded dynamic shape": module('  ROOT %d = f32[?,4] custom-call(%p), custom_call_target="x"\n'),
    "bounded and unbounded": module('  ROOT %d = f32[?,<=4,2] custom-call(%p), custom_call_target="x"\n'),
    "sparse layout": module('  ROOT %d = f32[8,4]{1,0:D(D,C)} custom-call(%p), custom_call_target="x"\n'),
    "sparse layout with types": module(
        '  ROOT %d = f32[8,4]{1,0:D(D,C)#(u32)*(u32)} custom-call(%p), custom_call_target="x"\n'
    ),
    "layout with everything": module(
        "  ROOT %d = bf16[16,256]{1,0:T(8,128)(2,1)L(2)#(u32)*(u32)E(16)S(1)M(64)} custom-call(%p), "
        'custom_call_target="x"\n'
    ),
    "layout with split": module(
        '  ROOT %d = bf16[16,256]{1,0:T(8,128)(2,1)S(1)SC(0:8)} custom-call(%p), custom_call_target="x"\n'
    ),
    "layout of unusual tiles": module(
        '  ROOT %d = bf16[16,256]{1,0:T(*,128)(2,1)} custom-call(%p), custom_call_target="x"\n'
    ),
    "scalar layouts": module(
        '  ROOT %d = (f32[]{:T(128)}, s32[]{:S(2)}, pred[]) custom-call(%p), custom_call_target="x"\n'
    ),
    "tuples in tuples": module(
        "  %e = () tuple()\n  %a = (f32[8], f32[8]) tuple(%p, %p)\n"
        "  ROOT %t = ((f32[8], f32[8]), (), f32[8]) tuple(%a, %e, %p)\n"
    ),
    "index comments": module(
        "  ROOT %t = (f32[8], f32[8], f32[8], f32[8], f32[8], /*index=5*/f32[8]) "
        "tuple(%p, %p, %p, %p, %p, /*index=5*/%p)\n"
    ),
    "comments": module(
        "  // a line\n  %a = /* here */ f32[8] negate(/* and here */ %p) // there\n  ROOT %b = f32[8] copy(%a)\n"
    ),
    "operand types": module("  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(f32[8]{0} %p, f32[8]{0} %p)\n"),
    "no percent": "HloModule m\n\n"
    "ENTRY main {\n  p.1 = f32[8]{0} parameter(0)\n  ROOT n-2 = f32[8]{0} negate(p.1)\n}\n",
    "computations without signature": module(
        "  ROOT %r = f32[8]{0} call(%p), to_apply=c\n",
        "c {\n  x = f32[8] parameter(0)\n  ROOT y = f32[8] negate(x)\n}\n\n",
    ),
    "no root": module("  %a = f32[8] negate(%p)\n  %b = f32[8] negate(%a)\n"),
    "root not last": module("  ROOT %a = f32[8] negate(%p)\n  %b = f32[8] negate(%a)\n"),
    "loop": module(
        "  %z = s32[] constant(0)\n  %i = (s32[], f32[8]) tuple(%z, %p)\n"
        "  ROOT %w = (s32[], f32[8]) while(%i), condition=%condition, body=%body, "
        'backend_config={"known_trip_count":{"n":"5"}}\n',
        LOOP,
    ),
    "conditional by index": module(
        "  %z = s32[] constant(0)\n  ROOT %c = f32[8] conditional(%z, %p, %p), branch_computations={%one, %two}\n",
        "%one {\n  %o = f32[8] parameter(0)\n  ROOT %on = f32[8] negate(%o)\n}\n\n"
        "%two {\n  %t = f32[8] parameter(0)\n  ROOT %tn = f32[8] abs(%t)\n}\n\n",
    ),
    "conditional by predicate": module(
        "  %z = pred[] constant(true)\n"
        "  ROOT %c = f32[8] conditional(%z, %p, %p), true_computation=%one, false_computation=%two\n",
        "%one {\n  %o = f32[8] parameter(0)\n  ROOT %on = f32[8] negate(%o)\n}\n\n"
        "%two {\n  %t = f32[8] parameter(0)\n  ROOT %tn = f32[8] abs(%t)\n}\n\n",
    ),
    "reductions": module(
        "  %z = f32[] constant(0)\n  %r = f32[] reduce(%p, %z), dimensions={0}, to_apply=%add\n"
        "  %w = f32[4] reduce-window(%p, %z), window={size=3 stride=2 pad=0_1 rhs_reversal=0}, to_apply=%add\n"
        "  %v = (f32[], f32[]) reduce(%p, %p, %z, %z), dimensions={0}, to_apply=%two\n"
        '  ROOT %t = (f32[], f32[4], f32[], f32[]) custom-call(%r, %w), custom_call_target="x"\n',
        ADD + "%two {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  %c = f32[] parameter(2)\n"
        "  %d = f32[] parameter(3)\n  ROOT %o = (f32[], f32[]) tuple(%a, %b)\n}\n\n",
    ),
    "sort, scatter, select and scatter": module(
        "  %z = f32[] constant(0)\n  %i = s32[2,1] constant({{0},{1}})\n  %u = f32[2] constant({1, 2})\n"
        "  %s = f32[8] sort(%p), dimensions={0}, is_stable=true, to_apply=%less\n"
        "  %t = f32[8] scatter(%s, %i, %u), update_window_dims={}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add\n"
        "  ROOT %o = f32[8] select-and-scatter(%t, %u, %z), window={size=4 stride=4}, select=%less, scatter=%add\n",
        ADD + "%less {\n  %a = f32[] parameter(0)\n"
        "  %b = f32[] parameter(1)\n  ROOT %l = pred[] compare(%a, %b), direction=LT\n}\n\n",
    ),
    "convolution and dot": module(
        "  %x = f32[1,4,4,3] constant({...})\n  %k = f32[3,3,3,5] constant({...})\n"
        "  %c = f32[1,4,4,5] convolution(%x, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, "
        "feature_group_count=1, operand_precision={highest,default}\n"
        "  %a = f32[2,3] constant({ { 1, 2, 3 }, { 4, 5, 6 } })\n"
        "  ROOT %d = f32[2,2] dot(%a, %a), "
        "lhs_contracting_dims={1}, rhs_contracting_dims={1}, algorithm=dot_bf16_bf16_f32\n"
    ),
    "literals": module(
        "  %a = pred[2] constant({true, false})\n  %b = c64[] constant((1, -2.5))\n  %c = f32[] constant(nan)\n"
        "  %d = f32[2] constant({-inf, 1e-10})\n  %e = bf16[] constant(-0)\n  %f = s8[0] constant({})\n"
        "  %g = (f32[], s32[2]) constant((1, {2, 3}))\n  %h = f32[2,2] constant({ /*i0=0*/ {1, 2}, {3, 4}})\n"
        "  ROOT %i = s64[] constant(-9223372036854775808)\n"
    ),
    "constants left out": module("  %c = f32[64,64]{1,0} constant({...})\n  ROOT %n = f32[8] negate(%p)\n"),
    "element types": module(
        "".join(
            f"  %v{i} = {dtype}[3] constant({{...}})\n"
            for i, dtype in enumerate(
                [
                    "pred",
                    "s2",
                    "s4",
                    "s8",
                    "s16",
                    "s32",
                    "s64",
                    "u2",
                    "u4",
                    "u8",
                    "u16",
                    "u32",
                    "u64",
                    "f4e2m1fn",
                    "f8e3m4",
                    "f8e4m3",
                    "f8e4m3fn",
                    "f8e4m3b11fnuz",
                    "f8e4m3fnuz",
                    "f8e5m2",
                    "f8e5m2fnuz",
                    "f8e8m0fnu",
                    "bf16",
                    "f16",
                    "f32",
                    "f64",
                    "c64",
                    "c128",
                ]
            )
        )
        + "  ROOT %n = f32[8] negate(%p)\n"
    ),
    "opaque and token": module(
        '  %o = opaque[] custom-call(%p), custom_call_target="x"\n  ROOT %t = token[] after-all()\n'
    ),
    "aliases": module(
        '  ROOT %k = (f32[8], f32[8]) custom-call(%p, %p), custom_call_target="x", '
        "output_to_operand_aliasing={{0}: (0, {}), {1}: (1, {})}, custom_call_has_side_effect=true, "
        "operand_layout_constraints={f32[8]{0}, f32[8]{0}}, api_version=API_VERSION_STATUS_RETURNING\n",
        header="input_output_alias={ {0}: (0, {}, may-alias) }, "
        "entry_computation_layout={(f32[8]{0})->(f32[8]{0}, f32[8]{0})}",
    ),
    "donors": module(
        "  ROOT %n = f32[8] negate(%p)\n",
        header="buffer_donor={ (0, {}) }, allow_spmd_sharding_propagation_to_output={true}",
    ),
    "frontend attributes": module(
        '  ROOT %n = f32[8] negate(%p), frontend_attributes={a="1",b={"c": [1, 2]},d="}"}\n',
        header='frontend_attributes={xla.sdy.meshes="{mesh = #sdy.mesh<[\\"a\\"=8]>}"}',
    ),
    "metadata": module(
        '  ROOT %n = f32[8] negate(%p), metadata={op_type="neg" op_name="jit(f)/a=\\"}, calls=%no" '
        'source_file="a.py" source_line=3 source_end_line=4 source_column=1 source_end_column=9 stack_frame_id=2}\n',
        header="is_scheduled=true",
    ),
    "metadata tables": (
        'HloModule m\n\nFileNames\n1 "a.py"\n2 "b } { \\" .py"\n\nFunctionNames\n1 "f"\n2 "<lambda>"\n\nFileLocations\n'
        "1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=4 end_column=9}\n"
        "2 {file_name_id=2 function_name_id=2 line=7 end_line=8 column=0 end_column=1}\n\nStackFrames\n"
        "1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=2 parent_frame_id=1}\n\n\n"
        "ENTRY %main {\n  %p = f32[8] parameter(0)\n  ROOT %n = f32[8] negate(%p), metadata={stack_frame_id=2}\n}\n"
    ),
    "backend config of text": module('  ROOT %n = f32[8] negate(%p), backend_config="{\\"a\\": \\"}\\"}"\n'),
    "backend config of JSON": module(
        '  ROOT %n = f32[8] negate(%p), backend_config={"a": {"b": ["}", "\\""]}, "calls": "%x"}\n'
    ),
    "statistics and origins": module(
        '  ROOT %n = f32[8] negate(%p), statistics={visualizing_index=0,a=1.5}, origin={{"x"}}\n',
        inputs="  %p = f32[8]{0} parameter(0), parameter_replication={true}\n",
    ),
    "control predecessors": module(
        "  %a = f32[8] negate(%p)\n  %b = f32[8] abs(%p), control-predecessors={%a}\n"
        "  ROOT %c = f32[8] copy(%b), control-predecessors={%a, %b}\n"
    ),
    "sharding replicated": module("  ROOT %n = f32[8] negate(%p), sharding={replicated}\n"),
    "sharding maximal": module("  ROOT %n = f32[8] negate(%p), sharding={maximal device=3}\n"),
    "sharding manual": module("  ROOT %n = f32[8] negate(%p), sharding={manual}\n"),
    "sharding of devices": module("  ROOT %n = f32[8] negate(%p), sharding={devices=[8]0,1,2,3,4,5,6,7}\n"),
    "sharding of iota": module(
        "  ROOT %n = f32[8] negate(%p), sharding={devices=[2,4]<=[2,2,2]T(2,1,0) last_tile_dim_replicate}\n"
    ),
    "sharding with subgroups": module(
        "  ROOT %n = f32[8] negate(%p), sharding={devices=[2,2,2]<=[8] "
        'last_tile_dims={manual, replicated} metadata={op_name="x"}}\n'
    ),
    "sharding of a tuple": module(
        "  ROOT %t = (f32[8], f32[8]) tuple(%p, %p), sharding={{devices=[8]<=[8]}, /*index=1*/{replicated}}\n"
    ),
    "sharding alike": module("  ROOT %n = f32[8] negate(%p), sharding={devices=[8]<=[8] shard_like 3}\n"),
    "sharding of a mesh": module("  ROOT %n = f32[8] negate(%p), sharding={mesh['a'=2,'b'=4], [{'a', 'b':(1)2}]}\n"),
    "sharding of a mesh, open": module(
        "  ROOT %n = f32[8] negate(%p), sharding={mesh['a'=2,'b'=4], [{'a', ?}], replicated={'b'}}\n"
    ),
    "sharding of a mesh, devices": module(
        "  ROOT %n = f32[8] negate(%p), sharding={mesh['a'=2,'b'=4], "
        "device_ids=([4,2]T(1,0)), [{'b'}], unreduced={'a'}}\n"
    ),
    "threads": module(
        "  %a = f32[8] call(%p), to_apply=%other\n  ROOT %n = f32[8] copy(%a)\n",
        '%other {\n  %o.p = f32[8] parameter(0)\n  ROOT %o = f32[8] negate(%o.p)\n}, execution_thread="main"\n\n',
    ),
    "composite": module(
        "  ROOT %c = f32[8] call(%p), to_apply=%other, is_composite=true, "
        'frontend_attributes={composite.name="n",composite.attributes="{}",composite.version="1"}\n',
        "%other {\n  %o.p = f32[8] parameter(0)\n  ROOT %o = f32[8] negate(%o.p)\n}\n\n",
    ),
    "called computations": module(
        '  ROOT %c = f32[8] custom-call(%p), custom_call_target="x", called_computations={%add}\n', ADD
    ),
    "fusion of outputs": module(
        "  ROOT %f = (f32[8], f32[8]) fusion(%p), kind=kOutput, "
        "output_to_operand_aliasing={{0}: (0, {})}, calls=%fused\n",
        "%fused {\n  %f.p = f32[8] parameter(0)\n  %f.n = f32[8] negate(%f.p)\n"
        "  ROOT %f.t = (f32[8], f32[8]) tuple(%f.p, %f.n)\n}\n\n",
    ),
    "random numbers": module(
        "  %k = u64[2] constant({1, 2})\n"
        "  %g = (u64[2], u32[4]) rng-bit-generator(%k), algorithm=rng_philox\n"
        "  %s = u64[1] rng-get-and-update-state(), delta=1\n"
        "  ROOT %n = f32[8] rng(%p, %p), distribution=rng_uniform\n"
    ),
    "names with marks": module("  %a.b_c-d = f32[8] negate(%p)\n  ROOT %_x.1.clone.2 = f32[8] copy(%a.b_c-d)\n"),
    "keyword names": module("  %parameter = f32[8] negate(%p)\n  ROOT %tuple = f32[8] copy(%parameter)\n"),
    "partition and replica": module("  %a = u32[] partition-id()\n  ROOT %b = u32[] replica-id()\n"),
    "domains": module(
        '  ROOT %d = f32[8] domain(%p), domain={kind="sharding", entry={replicated}, exit={maximal device=1}}\n'
    ),
    "quoted names": module("  ROOT %n = f32[8] negate(%p)\n").replace("HloModule m,", "HloModule jit__lambda_.1-x,"),
    "top-k and ragged dot": module("  ROOT %k = (f32[2], s32[2]) topk(%p), k=2, largest=true\n"),
    "buffers": module(
        '  %b = b(f32[8]) custom-call(%p), custom_call_target="CreateBuffer"\n'
        '  ROOT %c = f32[8] custom-call(%b), custom_call_target="Unpin", output_to_operand_aliasing={{}: (0, {})}\n'
    ),
    "accuracy": module(
        "  ROOT %n = f32[8] exponential(%p), result_accuracy={tolerance={atol=1e-6,rtol=1e-6,ulps=2}}\n"
    ),
    "windows line ends": module("  ROOT %n = f32[8] negate(%p)\n").replace("\n", "\r\n"),
    "tabs and blank lines": module("\n\n\tROOT\t%n = f32[8]\tnegate( %p )  ,  sharding={replicated}\n\n"),
}
