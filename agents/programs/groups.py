"""How many devices take part in one group of a collective, from the three ways in which HLO says it."""

import math

from fleetscope.schema.hlo_pb2 import DeviceAssignment, Instruction


def group_size(instruction: Instruction, devices: DeviceAssignment) -> int:
    """Devices of the largest replica group; 0: not said.

    Explicit groups (fields 49 and 87), groups of an iota tile assignment (87), or axes of a mesh (93). No groups at all
    mean one of all replicas, or of all devices where the op crosses partitions (xla/service/collective_ops_utils.h).
    """
    listed = instruction.collective_device_list
    groups = listed.replica_groups or instruction.replica_groups
    if groups:
        largest = max(len(group.replica_ids) for group in groups)
        if largest:
            return largest
    if instruction.HasField("collective_device_list") and listed.HasField("iota_replica_group_list"):
        return max(listed.iota_replica_group_list.num_devices_per_group, 0)
    if instruction.HasField("mesh_axes_replica_group_list"):
        return _mesh_group(instruction)
    replicas, partitions = max(devices.replica_count, 0), max(devices.computation_count, 0)
    return replicas * partitions if instruction.channel_id else replicas


def _mesh_group(instruction: Instruction) -> int:
    said = instruction.mesh_axes_replica_group_list
    sizes = []
    for axis in said.axes:
        if not 0 <= axis.mesh_axis_index < len(said.mesh.axes):
            return 0
        whole = said.mesh.axes[axis.mesh_axis_index].size
        sizes.append(axis.sub_axis_info.size if axis.HasField("sub_axis_info") else whole)
    return max(math.prod(sizes), 0) if sizes else 0
