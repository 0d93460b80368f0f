// Ops that read or write where an index array points. They have no formula: the schedule is all.
#include "indexed/accumulate.cuh"
#include "indexed/fixed.cuh"
#include "indexed/gather.cuh"
#include "indexed/lists.cuh"
#include "indexed/scatter.cuh"
#include "indexed/transposed_scatter.cuh"
#include "indexed/units.cuh"
