module @policy attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8x4xf32>) -> tensor<4xcomplex<f32>> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %2 = "stablehlo.compare"(%1, %1) <{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %3 = stablehlo.custom_call @our_kernel(%1) : (tensor<4xf32>) -> tensor<4xf32>
    %4 = stablehlo.add %3, %1 : tensor<4xf32>
    %5 = stablehlo.complex %4, %4 : tensor<4xcomplex<f32>>
    return %5 : tensor<4xcomplex<f32>>
  }
}
