// Package judge asks a language model on a server with OpenAI's API to choose between answers, for rewards that need a judge.
package judge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/jsonapi"
	"github.com/rltrain/rltrain/internal/transfer"
)

// Options are the options of a judge on a server.
type Options struct {
	URL         string `option:"judge_url" needs:"judge" help:"server with OpenAI's API where --judge runs, such as http://host:8000/v1; empty = in this process. JUDGE_API_KEY sets the API key"`
	Cache       string `option:"judge_cache" arg:"FILE" needs:"judge_url" incidental:"true" help:"file with the verdicts of the server's judge: equal questions are asked once, also by later runs"`
	Concurrency int    `option:"judge_concurrency" default:"16" range:"[1,1024]" needs:"judge_url" incidental:"true" help:"requests to the judge at the same time"`
}

// Check rejects invalid addresses.
func (o *Options) Check() error {
	if o.URL == "" {
		return nil
	}
	if !jsonapi.IsAddress(o.URL) {
		return envs.OptionErrorf("judge_url", "%.200q is not an address such as http://host:8000/v1", o.URL)
	}
	return nil
}

// Client is a judge on a server. It implements envs.Scorer and is safe for concurrent use.
type Client struct {
	url, key, model string
	http            *http.Client
	slots           chan struct{} // running requests
	pause           time.Duration // before the first retry; it doubles
	store           *store

	lock  sync.Mutex
	count Count
	plain bool // the server returns no log-probabilities
}

// Count is what a judge has done and used.
type Count struct {
	Questions, Cached, Requests, Retries, Failures int
	PromptTokens, CompletionTokens                 int
}

// New connects to nothing yet; model is the server's name of the judge, key the API key or "". The caller closes the client.
func New(o Options, model, key string) (*Client, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	kept, err := openStore(o.Cache)
	if err != nil {
		return nil, fmt.Errorf("judge_cache: %w", err)
	}
	base := strings.TrimRight(o.URL, "/")
	if !strings.HasSuffix(base, "/v1") {
		base += "/v1"
	}
	slots := cmp.Or(o.Concurrency, 16)
	return &Client{
		url: base + "/chat/completions", key: key, model: model, slots: make(chan struct{}, slots), pause: time.Second / 2, store: kept,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: slots, IdleConnTimeout: time.Minute, Proxy: http.ProxyFromEnvironment}},
	}, nil
}

// Close closes the cache.
func (c *Client) Close() error { return c.store.close() }

// Take returns the counts since the last call.
func (c *Client) Take() Count {
	c.lock.Lock()
	defer c.lock.Unlock()
	count := c.count
	c.count = Count{}
	return count
}

func (c *Client) note(change func(n *Count)) {
	c.lock.Lock()
	defer c.lock.Unlock()
	change(&c.count)
}

// Choose implements envs.Scorer. The server's judge is asked to reply with one of the choices. Its verdict is their probabilities as
// the reply's first token, scaled to sum to 1, or 1 for the reply if the server returns none or if the reply has several tokens.
func (c *Client) Choose(ctx context.Context, prompt envs.Observation, choices []string) ([]float64, error) {
	messages := question(prompt, choices)
	c.note(func(n *Count) { n.Questions++ })
	shares, cached, err := c.store.get(ctx, keyOf(c.model, messages, choices), func() ([]float64, error) {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		defer func() { <-c.slots }()
		return c.ask(ctx, messages, choices)
	})
	c.note(func(n *Count) {
		if err != nil {
			n.Failures++
		} else if cached {
			n.Cached++
		}
	})
	return shares, err
}

// question turns a prompt whose reply a model would continue into one that it answers.
func question(prompt envs.Observation, choices []string) []envs.Message {
	messages := prompt.Messages
	if len(messages) == 0 {
		messages = []envs.Message{{Role: envs.RoleUser, Content: prompt.Text}}
	}
	var asked []envs.Message
	for _, m := range messages {
		if m.Role != envs.RoleAssistant {
			asked = append(asked, envs.Message{Role: m.Role, Content: m.Content})
		}
	}
	const reply = "Reply with one of these and nothing else: "
	last := &asked[len(asked)-1]
	last.Content += "\n\n" + reply + strings.Join(choices, ", ")
	return asked
}

// attempts is how often a question is asked at most.
const attempts = 6

// mostPause bounds the time before a retry, whatever the server asks for.
const mostPause = time.Minute

// ask asks until there is a verdict, or an error that a retry does not change.
func (c *Client) ask(ctx context.Context, messages []envs.Message, choices []string) (shares []float64, err error) {
	pause := c.pause
	for try := range attempts {
		if try > 0 {
			c.note(func(n *Count) { n.Retries++ })
			if err := transfer.Wait(ctx, pause); err != nil {
				return nil, err
			}
			pause = min(2*pause, mostPause)
		}
		var again *retry
		if shares, err = c.request(ctx, messages, choices); !errors.As(err, &again) {
			return shares, err
		}
		if again.after > 0 {
			pause = min(again.after, mostPause)
		}
	}
	return nil, fmt.Errorf("judge: after %d attempts: %w", attempts, err)
}

// retry is an error that a retry may avoid.
type retry struct {
	error
	after time.Duration // that the server asks for; 0 = none
}

func (r *retry) Unwrap() error { return r.error }

// mostBytes is the maximum size of a response.
const mostBytes = 16 << 20

// request asks once.
func (c *Client) request(ctx context.Context, messages []envs.Message, choices []string) ([]float64, error) {
	c.lock.Lock()
	plain := c.plain
	c.count.Requests++
	c.lock.Unlock()
	body := map[string]any{"model": c.model, "messages": messages, "max_tokens": replyTokens, "temperature": 0}
	if !plain {
		body["logprobs"], body["top_logprobs"] = true, alternatives
	}
	var said reply
	err := jsonapi.Call(ctx, c.http, http.MethodPost, c.url, c.key, body, &said, mostBytes)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, c.refused(err, plain)
	}
	c.note(func(n *Count) {
		n.PromptTokens, n.CompletionTokens = n.PromptTokens+said.Usage.Prompt, n.CompletionTokens+said.Usage.Completion
	})
	return said.verdict(choices)
}

// refused is a request's error, which is a retry where another attempt may succeed.
func (c *Client) refused(err error, plain bool) error {
	var status *jsonapi.Status
	var transient jsonapi.Transient
	refusal := errors.As(err, &status)
	switch {
	case errors.As(err, &transient):
		again := &retry{error: err}
		if refusal {
			seconds, _ := strconv.ParseFloat(status.Header.Get("Retry-After"), 64)
			again.after = time.Duration(max(0, min(seconds, mostPause.Seconds())) * float64(time.Second))
		}
		return again
	case refusal && status.Code == http.StatusBadRequest && !plain && strings.Contains(status.Text, "logprobs"):
		c.lock.Lock()
		c.plain = true
		c.lock.Unlock()
		return &retry{error: err}
	}
	return fmt.Errorf("judge: %w", err)
}
