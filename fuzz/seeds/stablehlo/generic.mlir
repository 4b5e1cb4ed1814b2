"builtin.module"() <{sym_name = "jit_step"}> ({
  "sdy.mesh"() <{mesh = #sdy.mesh<["data"=2, "context"=4]>, sym_name = "mesh"}> : () -> ()
  "func.func"() <{arg_attrs = [{sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"context", ?}, {}]>}, {}], function_type = (tensor<2x64x128xbf16>, tensor<128x256xbf16>) -> tensor<2x64x256xbf16>, sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg0: tensor<2x64x128xbf16>, %arg1: tensor<128x256xbf16>):
    %0 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %1 = "stablehlo.dot_general"(%arg0, %arg1) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [0]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}> {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {"context"}, {}]>]>} : (tensor<2x64x128xbf16>, tensor<128x256xbf16>) -> tensor<2x64x256xbf16>
    %2:2 = "stablehlo.while"(%0, %1) ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<2x64x256xbf16>):
      %4 = "stablehlo.compare"(%arg2, %0) <{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      "stablehlo.return"(%4) : (tensor<i1>) -> ()
    }, {
    ^bb0(%arg4: tensor<i32>, %arg5: tensor<2x64x256xbf16>):
      "stablehlo.return"(%arg4, %arg5) : (tensor<i32>, tensor<2x64x256xbf16>) -> ()
    }) : (tensor<i32>, tensor<2x64x256xbf16>) -> (tensor<i32>, tensor<2x64x256xbf16>)
    %3 = "sdy.all_gather"(%2#1) <{gathering_axes = #sdy<list_of_axis_ref_lists[{"data"}, {"context":(2)2}, {}]>, out_sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}> : (tensor<2x64x256xbf16>) -> tensor<2x64x256xbf16>
    "func.return"(%3) : (tensor<2x64x256xbf16>) -> ()
  }) : () -> ()
}) {mhlo.num_partitions = 8 : i32} : () -> ()
