package rehdfs;

import java.util.EnumMap;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.fs.StorageType;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.server.blockmanagement.BlockPlacementPolicyDefault;
import org.apache.hadoop.hdfs.server.blockmanagement.DatanodeStorageInfo;
import org.apache.hadoop.net.Node;

/**
 * Placement of HDFS's blocks for circuits: rack i writes its second replica to rack i mod N + 1, so N racks form a ring.
 *
 * <p>HDFS's default policy asks for a random node of "~/rackI", any rack but rack I. This policy names one rack instead.
 * Racks are named /rack1 to /rackN. With {@code rehdfs.rotate.ms} above 0 the ring's step grows by one after each such
 * time, from 1 to N - 1 and again, so that a rack's replicas spread over all others.
 *
 * <p>Source: Mukerjee, CMU-CS-18-106, 2018, section 2.6.1.
 */
public class NextRack extends BlockPlacementPolicyDefault {
  private static final String OTHER_RACKS = "~/rack";
  /** Time between two steps of the ring, in milliseconds. 0 for one step for good. */
  private final long rotateMs = new HdfsConfiguration().getLong("rehdfs.rotate.ms", 0);

  @Override
  protected DatanodeStorageInfo chooseRandom(
      int replicas,
      String scope,
      Set<Node> excluded,
      long blockBytes,
      int rackNodesMax,
      List<DatanodeStorageInfo> results,
      boolean avoidsStale,
      EnumMap<StorageType, Integer> types)
      throws NotEnoughReplicasException {
    String place = scope;
    int racks = clusterMap.getNumOfRacks();
    if (scope.startsWith(OTHER_RACKS) && racks > 1) {
      int rack = Integer.parseInt(scope.substring(OTHER_RACKS.length()));
      long turns = rotateMs > 0 ? System.currentTimeMillis() / rotateMs : 0;
      int step = 1 + (int) (turns % (racks - 1));
      place = "/rack" + ((rack - 1 + step) % racks + 1);
    }
    return super.chooseRandom(replicas, place, excluded, blockBytes, rackNodesMax, results, avoidsStale, types);
  }
}
