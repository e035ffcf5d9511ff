package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	serving "github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/cmd/rltrain/serve/train"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// serveOptions are the options of serve that have a range.
type serveOptions struct {
	Port        int     `option:"port" default:"8000" range:"[0,65535]" help:"port to listen on; 0 = any free port"`
	MaxAdapters int     `option:"max_adapters" default:"4" range:"[0,1024]" help:"maximum number of loaded adapters"`
	BatchSize   int     `option:"batch_size" default:"64" range:"[1,4096]" help:"maximum completions generated at the same time"`
	Queue       int     `option:"queue" default:"256" range:"[1,1048576]" help:"maximum waiting requests; further ones get status 429"`
	Timeout     float64 `option:"timeout" range:"[0,1000000]" help:"time limit per request in seconds; 0 = none"`
	Models      int     `option:"train_models" default:"16" range:"[1,4096]" help:"maximum training runs in memory; idle ones beyond wait on disk (with --train)"`
	Grace       float64 `option:"grace" default:"30" range:"[0,1000000]" help:"seconds to finish running requests when the server stops"`
	LogProbs    string  `option:"logprobs_mode" default:"processed_logprobs" allowed:"processed_logprobs,raw_logprobs" help:"returned log-probs: processed_logprobs (after temperature and filters) or raw_logprobs"`
}

func serveCommand() *cli.Command {
	var o serveOptions
	flags := languageModelFlags()
	for i, f := range flags {
		if f.Names()[0] == "adapter" {
			flags[i] = &cli.StringSliceFlag{Name: "adapter", Usage: "LoRA adapter to serve, as NAME=DIR; repeatable"}
		}
	}
	return &cli.Command{
		Name:  "serve",
		Usage: "serve a language model with an OpenAI-compatible API",
		Description: `Routes: /v1/completions, /v1/chat/completions, /v1/systemone, /v1/models, /v1/load_lora_adapter,
/v1/unload_lora_adapter, /health, /metrics. Requests select the model by --name, or an adapter by its name. Streaming is
supported. A decision model with a head answers /v1/systemone alone.`,
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "host", Value: "127.0.0.1", Usage: "address to listen on; non-loopback addresses need --api-key"},
			&cli.StringFlag{Name: "api-key", Usage: "require this key in every request, as Authorization: Bearer KEY", EnvVars: []string{"RLTRAIN_API_KEY"}},
			&cli.StringFlag{Name: "name", Aliases: []string{"served-model-name"}, Usage: "model name in requests", DefaultText: "the last element of --model"},
			&cli.StringFlag{Name: "train", Usage: "let clients train LoRA adapters with the Tinker API; runs and checkpoints are kept in this folder", DefaultText: "the server does not train"},
			&cli.StringFlag{Name: "record", Usage: "let clients open sessions, and keep their tokens, log-probs and rewards in this folder, for --source recorded", DefaultText: "the server records nothing"},
			&cli.StringSliceFlag{Name: "adapter-dir", Usage: "allow requests to load adapters from this folder and below; repeatable", DefaultText: "requests cannot load adapters"},
			ignoreGenerationFlag(),
		}, config.OptionFlags(options.MustRead(&o)), flags),
		Action: func(c *cli.Context) error { return runServer(c, o) },
	}
}

// serveConfig reads the flags.
func serveConfig(c *cli.Context, o serveOptions) (serving.Config, error) {
	s := serving.Config{
		Name: cmp.Or(c.String("name"), servedName(c.String("model"))), Adapters: map[string]string{}, AdapterDirs: c.StringSlice("adapter-dir"), MaxAdapters: o.MaxAdapters,
		Slots: o.BatchSize, Queue: o.Queue, Key: c.String("api-key"), Record: c.String("record"), Raw: o.LogProbs == "raw_logprobs",
		Timeout: time.Duration(o.Timeout * float64(time.Second)), Grace: time.Duration(o.Grace * float64(time.Second)),
	}
	if c.IsSet("api-key") && s.Key == "" {
		return s, shared.UsageErrorf("--api-key: the key is empty")
	}
	if c.IsSet("train-models") && c.String("train") == "" {
		return s, shared.UsageErrorf("--train-models applies only with --train")
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

// servedSampling is how requests sample that say nothing.
func servedSampling(c *cli.Context, p *policy.CausalLM) torch.Sampling {
	o := samplingOptions{Temperature: 1, TopP: 1, RepetitionPenalty: 1}
	sampleAsModel(c, p, &o)
	return o.torch()
}

func runServer(c *cli.Context, o serveOptions) error {
	config, err := serveConfig(c, o)
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
	listener, err := net.Listen("tcp", net.JoinHostPort(c.String("host"), strconv.Itoa(o.Port)))
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("--port: another program uses %s; choose another port", net.JoinHostPort(c.String("host"), strconv.Itoa(o.Port)))
		}
		return fmt.Errorf("--port: %w", err)
	}
	defer listener.Close()
	return shared.OnThread(c, func(ctx context.Context) error {
		server, example, done, err := newServer(ctx, c, name, config, o)
		if err != nil {
			return err
		}
		defer done()
		config.Logf("serving %s at http://%s", config.Name, listener.Addr())
		config.Logf("try: %s", tryCommand(config, listener.Addr().String(), example))
		return server.Serve(ctx, listener)
	})
}

// newServer loads the model of a server, and gives an example of a request by route.
func newServer(ctx context.Context, c *cli.Context, name string, config serving.Config, o serveOptions) (server *serving.Server, example request, done func(), err error) {
	client, release := shared.HubOf(c)
	defer release()
	if found, unfound := client.Model(ctx, name, hub.Weights); unfound == nil && policy.HasQuestions(found.Dir) {
		return newHeadServer(ctx, c, name, config)
	}
	p, err := loadLanguageModel(c, name, "")
	if err != nil {
		return nil, example, nil, fmt.Errorf("--model: %w", err)
	}
	config.Defaults = servedSampling(c, p)
	server, err = serving.New(p, config)
	if err != nil {
		p.Close()
		return nil, example, nil, err
	}
	done = p.Close
	if dir := c.String("train"); dir != "" {
		trainer, err := train.New(ctx, server, p, train.Config{Name: config.Name, Dir: dir, Resident: o.Models, Adapters: max(1, o.MaxAdapters), Logf: config.Logf})
		if err != nil {
			server.Close()
			p.Close()
			return nil, example, nil, fmt.Errorf("--train: %w", err)
		}
		config.Logf("training %s by the Tinker API; runs are kept in %s", config.Name, dir)
		done = func() { trainer.Close(); p.Close() }
	}
	config.Logf("end tokens: %s", shared.EOSNames(p))
	example = request{"/v1/completions", map[string]any{"prompt": "Once upon a time", "max_tokens": 20}}
	if p.Templates != nil {
		example = request{"/v1/chat/completions", map[string]any{"messages": []map[string]string{{"role": "user", "content": "Hello"}}, "max_tokens": 50}}
	}
	return server, example, done, nil
}

// servedName is the default model name in requests: a folder's or file's own name, otherwise model itself, such as a
// Hugging Face id.
func servedName(model string) string {
	if files.Exist(model) {
		return filepath.Base(filepath.Clean(model))
	}
	return model
}

// newHeadServer is newServer for a decision model with a head.
func newHeadServer(ctx context.Context, c *cli.Context, name string, config serving.Config) (server *serving.Server, example request, done func(), err error) {
	if err := onlyFlags(c, "to a decision model with a head", []string{"model", "dtype", "name", "served-model-name", "host", "port", "api-key", "queue", "timeout", "grace", "threads", "device"}); err != nil {
		return nil, example, nil, err
	}
	p, err := loadDecider(c, name)
	if err != nil {
		return nil, example, nil, err
	}
	questions, err := jinja.JSON(p.Requests())
	if err == nil {
		server, err = serving.NewForHead(p, config)
	}
	if err != nil {
		p.Close()
		return nil, example, nil, err
	}
	return server, request{"/v1/systemone", map[string]any{"state": "Hello", "questions": json.RawMessage(questions)}}, p.Close, nil
}

// request is a first request to a server, without the model.
type request struct {
	route string
	body  map[string]any
}

// tryCommand is a shell command that sends a request.
func tryCommand(s serving.Config, address string, example request) string {
	example.body["model"] = s.Name
	data, err := json.Marshal(example.body)
	if err != nil { // strings and numbers always encode
		return ""
	}
	key := ""
	if s.Key != "" {
		key = ` -H "Authorization: Bearer $RLTRAIN_API_KEY"`
	}
	return "curl http://" + address + example.route + key + " -d " + shared.ShellQuote(string(data))
}
