package volstream;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Iterator;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Makes Delta's commits conditional, in S3 (If-None-Match) and in folders (a link), so that none replaces that of another engine.
 *
 * <p>Delta's own stores look whether a version is there, and then write it.
 */
public final class ConditionalLogStore extends S3SingleDriverLogStore {
    private static final String CONDITION = "fs.option.create.conditional.overwrite";

    /** Of two requests at once S3 may refuse both. */
    private static final int ATTEMPTS = 10;

    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        if (overwrite) {
            super.write(path, actions, true, configuration);
            return;
        }
        ByteArrayOutputStream lines = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            lines.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
        }
        byte[] content = lines.toByteArray();
        FileSystem store = path.getFileSystem(configuration);
        if (isFolder(store)) {
            link(Paths.get(path.toUri().getPath()), content);
            return;
        }
        for (int attempt = 1; ; attempt++) {
            try (FSDataOutputStream file = (FSDataOutputStream)
                    store.createFile(path).recursive().overwrite(false).must(CONDITION, true).build()) {
                file.write(content);
            } catch (IOException error) {
                byte[] there = read(store, path);
                if (there == null && attempt < ATTEMPTS && error.toString().contains("ConditionalRequestConflict")) {
                    pause(attempt);
                    continue;
                }
                if (there == null) {
                    throw error;
                }
                // A repeated request finds what the first one wrote, whose answer was lost.
                if (!Arrays.equals(there, content)) {
                    throw new FileAlreadyExistsException(path.toString());
                }
            }
            return;
        }
    }

    /** Of a checkpoint, which is written under its own name if this is false. */
    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        try {
            return isFolder(path.getFileSystem(configuration)) || super.isPartialWriteVisible(path, configuration);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void pause(int attempt) throws IOException {
        try {
            Thread.sleep(ThreadLocalRandom.current().nextLong(20, 200) * attempt);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException();
        }
    }

    private static boolean isFolder(FileSystem store) {
        return "file".equals(store.getUri().getScheme());
    }

    private static void link(java.nio.file.Path target, byte[] content) throws IOException {
        java.nio.file.Path draft = target.resolveSibling("." + UUID.randomUUID() + ".tmp");
        try {
            try (FileChannel file =
                    FileChannel.open(draft, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
                ByteBuffer left = ByteBuffer.wrap(content);
                while (left.hasRemaining()) {
                    file.write(left);
                }
                file.force(true);
            }
            Files.createLink(target, draft);
        } finally {
            Files.deleteIfExists(draft);
        }
    }

    private static byte[] read(FileSystem store, Path path) throws IOException {
        try (FSDataInputStream file = store.open(path)) {
            return file.readAllBytes();
        } catch (FileNotFoundException error) {
            return null;
        }
    }
}
