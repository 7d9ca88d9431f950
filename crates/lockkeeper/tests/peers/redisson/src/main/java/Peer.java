import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.StringJoiner;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson, told over standard input what to do: {@code Peer lock|fenced|fair|read|write PORT[,PORT…]}, several of a Cluster. Orders are in mod.rs. */
public final class Peer {
    private static final long LIMIT_MS = 30_000;
    private static final long PAUSE_MS = 8;

    private final RedissonClient client;
    private final String kind;
    private RLock lock;
    /** How often it is held: an extension is one more entry. */
    private int entries;
    private long token;

    private Peer(String kind, String[] ports) {
        Config config = new Config();
        if (ports.length == 1) {
            config.useSingleServer()
                    .setAddress("redis://127.0.0.1:" + ports[0])
                    .setConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionMinimumIdleSize(1);
        } else {
            for (String port : ports) {
                config.useClusterServers().addNodeAddress("redis://127.0.0.1:" + port);
            }
            config.useClusterServers().setMasterConnectionMinimumIdleSize(1);
        }
        this.kind = kind;
        client = Redisson.create(config);
    }

    private RLock named(String name) {
        return switch (kind) {
            case "lock" -> client.getLock(name);
            case "fenced" -> client.getFencedLock(name);
            case "fair" -> client.getFairLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            default -> throw new IllegalArgumentException(kind);
        };
    }

    /** TTL 0 leaves the lease to its watchdog. */
    private boolean enter(RLock lock, long wait, long ttl) throws InterruptedException {
        long lease = ttl == 0 ? -1 : ttl;
        if (lock instanceof RFencedLock fenced) {
            Long drawn = fenced.tryLockAndGetToken(wait, lease, TimeUnit.MILLISECONDS);
            token = drawn == null ? 0 : drawn;
            return drawn != null;
        }
        return lock.tryLock(wait, lease, TimeUnit.MILLISECONDS);
    }

    private static boolean leave(RLock lock) {
        try {
            lock.unlock();
            return true;
        } catch (IllegalMonitorStateException notOurs) {
            return false;
        }
    }

    private static long[] section(Path place) throws IOException, InterruptedException {
        Path inside = place.resolve("inside");
        Path count = place.resolve("count");
        long begin = System.nanoTime();
        long overlaps = 0;
        try {
            Files.createFile(inside);
        } catch (FileAlreadyExistsException another) {
            overlaps = 1;
        }
        String text = Files.readString(count);
        long n = text.isEmpty() ? 0 : Long.parseLong(text);
        TimeUnit.MICROSECONDS.sleep(200);
        Files.writeString(count, Long.toString(n + 1));
        try {
            Files.delete(inside);
        } catch (NoSuchFileException another) {
            overlaps = 1;
        }
        return new long[] {begin, System.nanoTime(), overlaps};
    }

    private String storm(String name, long ttl, int rounds, Path place) throws IOException, InterruptedException {
        long overlaps = 0;
        StringJoiner times = new StringJoiner(" ");
        RLock lock = named(name);
        for (int i = 0; i < rounds; i++) {
            if (!enter(lock, LIMIT_MS, ttl)) {
                throw new IllegalStateException("not granted in time");
            }
            long[] seen = section(place);
            long drawn = token;
            if (!leave(lock)) {
                throw new IllegalStateException("lost");
            }
            overlaps += seen[2];
            times.add(seen[0] + " " + seen[1]);
            if (kind.equals("fenced")) {
                times.add(Long.toString(drawn));
            }
            Thread.sleep(ThreadLocalRandom.current().nextLong(PAUSE_MS));
        }
        return overlaps + " " + times;
    }

    private String obey(String[] words) throws IOException, InterruptedException {
        switch (words[0]) {
            case "take", "wait" -> {
                lock = named(words[1]);
                boolean taken = enter(lock, words[0].equals("take") ? 0 : LIMIT_MS, Long.parseLong(words[2]));
                entries = taken ? 1 : 0;
                return said(taken) + " " + System.nanoTime();
            }
            case "free" -> {
                long asked = System.nanoTime();
                boolean freed = leave(lock);
                for (int i = 1; i < entries && freed; i++) {
                    freed = leave(lock);
                }
                return said(freed) + " " + asked;
            }
            case "extend" -> {
                boolean entered = enter(lock, 0, Long.parseLong(words[1]));
                entries += entered ? 1 : 0;
                return said(entered);
            }
            case "storm" -> {
                return storm(words[1], Long.parseLong(words[2]), Integer.parseInt(words[3]), Path.of(words[4]));
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static String said(boolean word) {
        return word ? "yes" : "no";
    }

    public static void main(String[] args) throws IOException, InterruptedException {
        Peer peer = new Peer(args[0], args[1].split(","));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            System.out.println("@ " + peer.obey(line.split(" ")));
        }
        peer.client.shutdown();
    }
}
