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
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Curator, told over standard input what to do: {@code Peer mutex|read|write PORT}. Orders are in mod.rs. */
public final class Peer {
    private static final long LIMIT_MS = 30_000;
    private static final long PAUSE_MS = 8;

    private final CuratorFramework client;
    private final String kind;
    private InterProcessLock lock;

    private Peer(String kind, int port) {
        this.kind = kind;
        client = CuratorFrameworkFactory.newClient(
                "127.0.0.1:" + port, 20_000, 10_000, new ExponentialBackoffRetry(100, 5));
        client.start();
    }

    private InterProcessLock named(String path) {
        return switch (kind) {
            case "mutex" -> new InterProcessMutex(client, path);
            case "read" -> new InterProcessReadWriteLock(client, path).readLock();
            case "write" -> new InterProcessReadWriteLock(client, path).writeLock();
            default -> throw new IllegalArgumentException(kind);
        };
    }

    private static boolean leave(InterProcessLock lock) throws Exception {
        try {
            lock.release();
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

    private String storm(String path, int rounds, Path place) throws Exception {
        long overlaps = 0;
        StringJoiner times = new StringJoiner(" ");
        InterProcessLock lock = named(path);
        for (int i = 0; i < rounds; i++) {
            if (!lock.acquire(LIMIT_MS, TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException("not granted in time");
            }
            long[] seen = section(place);
            lock.release();
            overlaps += seen[2];
            times.add(seen[0] + " " + seen[1]);
            Thread.sleep(ThreadLocalRandom.current().nextLong(PAUSE_MS));
        }
        return overlaps + " " + times;
    }

    private String obey(String[] words) throws Exception {
        switch (words[0]) {
            case "take", "wait" -> {
                lock = named(words[1]);
                long limit = words[0].equals("take") ? 0 : LIMIT_MS;
                boolean taken = lock.acquire(limit, TimeUnit.MILLISECONDS);
                return said(taken) + " " + System.nanoTime();
            }
            case "free" -> {
                long asked = System.nanoTime();
                return said(leave(lock)) + " " + asked;
            }
            case "storm" -> {
                return storm(words[1], Integer.parseInt(words[3]), Path.of(words[4]));
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static String said(boolean word) {
        return word ? "yes" : "no";
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args[0], Integer.parseInt(args[1]));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            System.out.println("@ " + peer.obey(line.split(" ")));
        }
        peer.client.close();
    }
}
