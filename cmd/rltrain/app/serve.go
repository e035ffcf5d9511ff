package app

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	serving "github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
)

func serveCommand() (*cli.Command, error) {
	flags, err := languageModelFlags()
	if err != nil {
		return nil, err
	}
	for i, f := range flags {
		if f.Names()[0] == "adapter" {
			flags[i] = &cli.StringSliceFlag{Name: "adapter", Usage: "LoRA adapter to serve, as NAME=DIR; repeatable"}
		}
	}
	return &cli.Command{
		Name:  "serve",
		Usage: "serve a language model with an OpenAI-compatible API",
		Description: `Routes: /v1/completions, /v1/chat/completions, /v1/models, /v1/load_lora_adapter, /v1/unload_lora_adapter, /health,
/metrics. Requests select the model by --name, or an adapter by its name. Streaming is supported.`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "host", Value: "127.0.0.1", Usage: "address to listen on; non-loopback addresses need --api-key"},
			&cli.IntFlag{Name: "port", Value: 8000, Usage: "port to listen on; 0 = any free port"},
			&cli.StringFlag{Name: "api-key", Usage: "require this key in every request, as Authorization: Bearer KEY", EnvVars: []string{"RLTRAIN_API_KEY"}},
			&cli.StringFlag{Name: "name", Usage: "model name in requests", DefaultText: "--model"},
			&cli.StringSliceFlag{Name: "adapter-dir", Usage: "allow requests to load adapters from this folder and below; repeatable", DefaultText: "requests cannot load adapters"},
			&cli.IntFlag{Name: "max-adapters", Value: 4, Usage: "maximum number of loaded adapters"},
			&cli.IntFlag{Name: "batch-size", Value: 64, Usage: "maximum completions generated at the same time"},
			&cli.IntFlag{Name: "queue", Value: 256, Usage: "maximum waiting requests; further ones get status 429"},
			&cli.Float64Flag{Name: "timeout", Usage: "time limit per request in seconds; 0 = none"},
			&cli.Float64Flag{Name: "grace", Value: 30, Usage: "seconds to finish running requests when the server stops"},
			&cli.StringFlag{Name: "logprobs-mode", Value: "processed_logprobs", Usage: "returned log-probs: processed_logprobs (after temperature and filters) or raw_logprobs"},
		}, flags...),
		Action: serveAction,
	}, nil
}

// serveConfig reads the flags.
func serveConfig(c *cli.Context) (serving.Config, error) {
	s := serving.Config{
		Name: c.String("name"), Adapters: map[string]string{}, AdapterDirs: c.StringSlice("adapter-dir"), MaxAdapters: c.Int("max-adapters"),
		Slots: c.Int("batch-size"), Queue: c.Int("queue"), Key: c.String("api-key"), Raw: c.String("logprobs-mode") == "raw_logprobs",
		Timeout: time.Duration(c.Float64("timeout") * float64(time.Second)), Grace: time.Duration(c.Float64("grace") * float64(time.Second)),
	}
	if s.Name == "" {
		s.Name = c.String("model")
	}
	for _, limit := range []struct {
		flag             string
		value, low, high float64
	}{
		{"port", float64(c.Int("port")), 0, 65535}, {"max-adapters", float64(s.MaxAdapters), 0, 1024}, {"batch-size", float64(s.Slots), 1, 4096},
		{"queue", float64(s.Queue), 1, 1 << 20}, {"timeout", c.Float64("timeout"), 0, 1e6}, {"grace", c.Float64("grace"), 0, 1e6},
	} {
		if !(limit.value >= limit.low && limit.value <= limit.high) {
			return s, shared.UsageErrorf("--%s: %s is out of range; it must be %s to %s", limit.flag, plainNumber(limit.value), plainNumber(limit.low), plainNumber(limit.high))
		}
	}
	if mode := c.String("logprobs-mode"); mode != "processed_logprobs" && mode != "raw_logprobs" {
		return s, shared.UsageErrorf("--logprobs-mode: %q is neither processed_logprobs nor raw_logprobs", mode)
	}
	if c.IsSet("api-key") && s.Key == "" {
		return s, shared.UsageErrorf("--api-key: the key is empty")
	}
	if host := net.ParseIP(c.String("host")); s.Key == "" && c.String("host") != "localhost" && (host == nil || !host.IsLoopback()) {
		return s, shared.UsageErrorf("--host: other machines can reach %s; pass --api-key", c.String("host"))
	}
	for _, pair := range c.StringSlice("adapter") {
		name, dir, ok := strings.Cut(pair, "=")
		if !ok || name == "" || dir == "" {
			return s, shared.UsageErrorf("--adapter: %q is not NAME=DIR", pair)
		}
		if _, twice := s.Adapters[name]; twice || name == s.Name {
			return s, shared.UsageErrorf("--adapter: duplicate name %s", name)
		}
		s.Adapters[name] = dir
	}
	if len(s.Adapters) > s.MaxAdapters {
		return s, shared.UsageErrorf("--adapter: %d adapters exceed --max-adapters %d", len(s.Adapters), s.MaxAdapters)
	}
	for _, dir := range s.AdapterDirs {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return s, shared.UsageErrorf("--adapter-dir: %v", err)
		}
		if real == "/" {
			return s, shared.UsageErrorf("--adapter-dir: %s would allow every folder; choose a narrower one", dir)
		}
	}
	return s, nil
}

func serveAction(c *cli.Context) error {
	config, err := serveConfig(c)
	if err != nil {
		return err
	}
	name := c.String("model")
	if name == "" {
		return shared.UsageErrorf("serve needs --model: the folder of a language model or adapter, or a Hugging Face id")
	}
	var lock sync.Mutex
	config.Logf = func(format string, args ...any) {
		lock.Lock()
		defer lock.Unlock()
		fmt.Fprintln(c.App.ErrWriter, "rltrain: "+shared.OneLine(fmt.Sprintf(format, args...)))
	}
	// Fail on a port in use before loading a large model.
	listener, err := net.Listen("tcp", net.JoinHostPort(c.String("host"), strconv.Itoa(c.Int("port"))))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	defer listener.Close()
	return shared.OnThread(c, func(ctx context.Context) error {
		p, err := loadLanguageModel(c, name, "")
		if err != nil {
			return fmt.Errorf("--model: %w", err)
		}
		defer p.Close()
		server, err := serving.New(p, config)
		if err != nil {
			return err
		}
		config.Logf("stop tokens: %s", shared.EOSNames(p))
		config.Logf("serving %s at http://%s", config.Name, listener.Addr())
		return server.Serve(ctx, listener)
	})
}
