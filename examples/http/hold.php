<?php
// Writes every line of its input to a register, while it holds a lock, through a gateway.
//
//     php hold.php http://127.0.0.1:7420 NAME < lines
//
// Needs only PHP 8.0 or newer. BEARER_FILE names a file with the secret of a token, TTL_MS sets the TTL.
declare(strict_types=1);

[, $url, $name] = $argv;
$ttl = (int) (getenv('TTL_MS') ?: 30000);
// Fresh for every acquisition, and secret: it is what makes the lock ours, and a repeated request harmless.
$holder = bin2hex(random_bytes(16));
$headers = ['Content-Type: application/json'];
if ($file = getenv('BEARER_FILE')) {
    $headers[] = 'Authorization: Bearer ' . trim(file_get_contents($file));
}

/** The status and the answer; status 0 when there is none. */
function ask(string $path, array $body, float $limit = 60.0): array
{
    global $url, $headers;
    $http = ['method' => 'POST', 'header' => $headers, 'content' => json_encode($body)];
    $http += ['timeout' => $limit, 'ignore_errors' => true];
    $text = @file_get_contents("$url/v1/$path", false, stream_context_create(['http' => $http]));
    if ($text === false) {
        return [0, []];
    }
    return [(int) explode(' ', $http_response_header[0])[1], json_decode($text, true)];
}

function now(): float
{
    return hrtime(true) / 1e9; // not the wall clock, which may be set
}

function finish(int $code, string $why): never
{
    fwrite(STDERR, "$why\n");
    exit($code);
}

/** Carries out a request at the fence; ends when it is refused. */
function fenced(string $path, array $body): void
{
    [$status, $answer] = ask($path, $body);
    if ($status === 412) {
        // A later holder was here: we were paused for too long, or broken, and have not noticed yet.
        finish(1, "stale: the fence has seen token {$answer['seen']}");
    } elseif ($status !== 200) {
        finish(1, 'refused: ' . ($answer['title'] ?? 'no answer'));
    }
}

do {
    $sent = now(); // the lease counts from here, not from the answer
    // stay keeps our place in line until we ask again.
    $ours = ['name' => $name, 'holder' => $holder, 'ttl_ms' => $ttl];
    [$status, $grant] = ask('acquire', $ours + ['wait_ms' => 20000, 'stay' => true]);
    if ($status !== 200) {
        if ($status !== 0 && !in_array($grant['kind'], ['busy', 'closed', 'unavailable'], true)) {
            finish(1, "refused: {$grant['title']}");
        }
        // The same holder id asks again: a grant that was not heard is heard now.
        usleep(100000);
    }
} while ($status !== 200);
$deadline = $sent + $grant['valid_ms'] / 1000;
$renew = $sent + $grant['renew_ms'] / 1000;
$pass = ['lock' => $name, 'token' => $grant['token'], 'holder' => $holder];
echo "token {$grant['token']}\n";
// From now on the fence refuses earlier holders of the lock.
fenced('registers/enter', ['key' => "last/$name", 'pass' => $pass]);
// PHP has one thread: between pieces of work it looks whether a renewal is due, and pieces must be short.
$input = '';
for ($more = true; $more;) {
    $ready = [STDIN];
    $none = null;
    $wait = max(0, min($renew, $deadline) - now());
    if (stream_select($ready, $none, $none, (int) $wait, (int) (fmod($wait, 1) * 1e6)) > 0) {
        $read = fread(STDIN, 8192);
        $more = $read !== '' && $read !== false;
        $input .= $read;
        while (($at = strpos($input, "\n")) !== false) {
            $line = substr($input, 0, $at);
            $input = substr($input, $at + 1);
            if (now() >= $deadline) {
                finish(76, 'lost: not renewed in time');
            }
            fenced('registers/write', ['key' => "last/$name", 'pass' => $pass, 'value64' => base64_encode($line)]);
            echo "wrote $line\n";
        }
    }
    $sent = now();
    if ($sent >= $deadline) {
        finish(76, 'lost: not renewed in time');
    } elseif ($sent >= $renew) {
        [$status, $answer] = ask('renew', $ours, $deadline - $sent);
        if ($status === 200) {
            $deadline = $sent + $answer['valid_ms'] / 1000;
            $renew = $sent + $grant['renew_ms'] / 1000;
        } elseif ($status === 410) {
            finish(76, "lost: {$answer['reason']}");
        } else {
            $renew = $sent + 0.2; // asked again until the deadline
        }
    }
}
ask('release', ['name' => $name, 'holder' => $holder]);
