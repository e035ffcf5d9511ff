//go:build load

package app

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/dist/disttest"
)

// rolloutServer is an `rltrain serve` process.
type rolloutServer struct {
	command *exec.Cmd
	url     string
}

func startServer(t *testing.T, binary, model, adapters string) *rolloutServer {
	t.Helper()
	s := &rolloutServer{command: exec.Command(binary, "serve", "--model", model, "--port", "0", "--adapter-dir", adapters, "--threads", "1")}
	out := must.Get(s.command.StderrPipe())(t)
	must.Do(t, s.command.Start())
	t.Cleanup(func() {
		_ = s.command.Process.Kill() // it may have exited
		_ = s.command.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, url, found := strings.Cut(lines.Text(), " at http"); found {
			s.url = "http" + url
			go func() {
				for lines.Scan() {
				}
			}()
			return s
		}
	}
	t.Fatal("the server did not start")
	return nil
}

// TestLoadTrainingOnKilledServers: if one of two servers is killed, the run ends with the weights of a run on
// one healthy server. This holds for asynchronous rollouts and for two ranks.
func TestLoadTrainingOnKilledServers(t *testing.T) {
	tmp := t.TempDir()
	binary := filepath.Join(tmp, "rltrain")
	if out, err := exec.Command("go", "build", "-o", binary, "..").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	adapters := filepath.Join(tmp, "adapters")
	must.Do(t, os.Mkdir(adapters, 0o755))
	base := exec.Command(binary, "--task", "reverse_digits", "--mode", "supervised", "--output-dir", tmp, "--tiny-layers", "2", "--tiny-hidden", "64",
		"--max-steps", "40", "--warmup-check-every", "0", "--eval-samples", "10", "--threads", "1")
	if out, err := base.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	model := filepath.Join(tmp, "reverse_digits_supervised")
	// train runs the given number of ranks and returns the last checkpoint.
	train := func(name string, ranks int, kill *rolloutServer, more []string, servers ...*rolloutServer) (checkpoint string, weights []byte) {
		output := filepath.Join(tmp, name)
		var urls []string
		for _, s := range servers {
			urls = append(urls, s.url)
		}
		args := append([]string{"--task", "reverse_digits", "--mode", "rl_only", "--model", model, "--tuning", "lora", "--num-steps", "8",
			"--prompts-per-step", "12", "--eval-samples", "10", "--eval-every", "8", "--fresh-samples", "10", "--rl-learning-rate", "1e-2", "--reward", "accuracy,expr:'-0.01*length'",
			"--rollout-url", strings.Join(urls, ","), "--rollout-dir", adapters, "--output-dir", output, "--threads", "1"}, more...)
		run := exec.Command(binary, args...)
		if ranks > 1 {
			port := disttest.FreePort(t)
			of := func(rank int) []string {
				return append(os.Environ(), fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", ranks), "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port))
			}
			run.Env = of(0)
			for rank := 1; rank < ranks; rank++ {
				other := exec.Command(binary, args...)
				other.Env, other.Stderr = of(rank), os.Stderr
				must.Do(t, other.Start())
				defer func() {
					expect.NoError(t, other.Wait(), "%s, rank %d", name, rank)
				}()
			}
		}
		out := must.Get(run.StdoutPipe())(t)
		var complaints bytes.Buffer
		run.Stderr = &complaints
		must.Do(t, run.Start())
		said := ""
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said += lines.Text() + "\n"
			if kill != nil && strings.Contains(lines.Text(), " 3/8  reward") {
				expect.NoError(t, kill.command.Process.Signal(syscall.SIGKILL), "Signal")
				kill = nil
			}
		}
		err := run.Wait()
		expect.Require(t, err == nil, "%v\n%s%s", err, said, complaints.String())
		expect.True(t, len(servers) <= 1 || strings.Contains(said, "sending its prompts to 1 others"), "%s: the log does not mention the killed server:\n%s", name, said)
		checkpoint = filepath.Join(output, "reverse_digits_rl", "checkpoints", "checkpoint-8")
		weights = must.Get(os.ReadFile(filepath.Join(checkpoint, "adapter_model.safetensors")))(t)
		return checkpoint, weights
	}
	lives := startServer(t, binary, model, adapters)
	for name, more := range map[string][]string{"waiting": nil, "ahead": {"--async", "--max-staleness", "2"}} {
		one, whole := train(name, 1, nil, more, lives)
		dies := startServer(t, binary, model, adapters)
		_, killed := train(name+"-killed", 1, dies, more, dies, lives)
		expect.True(t, bytes.Equal(whole, killed), "%s: other weights than without the kill", name)
		two, whole := train(name+"-ranks", 2, nil, more, lives)
		d := apart(t, one, two)
		expect.True(t, d <= 1e-5, "%s: the weights of two ranks differ by %g from those of one", name, d)
		dies = startServer(t, binary, model, adapters)
		_, killed = train(name+"-ranks-killed", 2, dies, more, dies, lives)
		expect.True(t, bytes.Equal(whole, killed), "%s: other weights of two ranks than without the kill", name)
	}
}
