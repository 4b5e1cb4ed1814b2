#loc = loc(unknown)
module @jit_step attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "context"=4]>
  func.func public @main(%arg0: tensor<2x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"context"}]>}, %arg1: tensor<64x8xbf16>) -> (tensor<2x8xbf16> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<[[0, 1], [2, 3]]> : tensor<2x2xi32>
    %cst = stablehlo.constant dense<4.467770e-02> : tensor<bf16>
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64xbf16>, tensor<64x8xbf16>) -> tensor<2x8xbf16>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {}]> : tensor<2x8xbf16>
    %2:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %1) : tensor<2x2xi32>, tensor<2x8xbf16>
     cond {
      %4 = stablehlo.constant dense<true> : tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %4 = func.call @f(%iterArg_0) : (tensor<2x8xbf16>) -> tensor<2x8xbf16>
      stablehlo.return %iterArg, %4 : tensor<2x2xi32>, tensor<2x8xbf16>
    }
    return %2#1 : tensor<2x8xbf16>
  }
  func.func private @f(%arg0: tensor<2x8xbf16>) -> tensor<2x8xbf16> {
    return %arg0 : tensor<2x8xbf16>
  }
}
