package remote

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/jsonapi"
	"github.com/rltrain/rltrain/internal/transfer"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
)

// TeacherConfig configures a Teacher.
type TeacherConfig struct {
	algo.TeacherServer
	Model     string // the server's name of the teacher
	Key       string
	Positions int                              // tokens of the longest prompt and completion
	Warn      func(format string, args ...any) // called by Rate
	Pause     time.Duration                    // before the first retry; it doubles; 0 = 1 s
}

// Teacher is a language model on a server, whose log-probabilities of a policy's tokens Rate asks for.
type Teacher struct {
	config TeacherConfig
	server *server
	policy *policy.CausalLM
}

// NewTeacher connects to the server. A server without the model, with another tokenizer, or that does not return the log-probabilities
// of a prompt is an error.
func NewTeacher(ctx context.Context, p *policy.CausalLM, c TeacherConfig) (*Teacher, error) {
	if !jsonapi.IsAddress(c.URL) {
		return nil, fmt.Errorf("%.200q is not an address such as http://host:8000/v1", c.URL)
	}
	if c.Pause == 0 {
		c.Pause = time.Second
	}
	base := strings.TrimSuffix(strings.TrimRight(c.URL, "/"), "/v1")
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: c.Concurrency, IdleConnTimeout: time.Minute, Proxy: http.ProxyFromEnvironment}}
	t := &Teacher{config: c, policy: p, server: &server{url: base, key: c.Key, client: client, limit: time.Duration(c.Timeout * float64(time.Second))}}
	if err := t.try(ctx); err != nil {
		t.Close()
		return nil, fmt.Errorf("%s: %w", c.URL, err)
	}
	return t, nil
}

// Close closes the connections.
func (t *Teacher) Close() { t.server.client.CloseIdleConnections() }

// trialTexts is how many texts the tokenizers are compared by.
const trialTexts = 4

func (t *Teacher) try(ctx context.Context) error {
	if err := t.server.find(ctx, t.config.Model, t.config.Positions, "teacher"); err != nil {
		return err
	}
	for i := range trialTexts {
		if err := t.server.sameTokenizer(ctx, t.policy, i); errors.Is(err, ErrMismatch) {
			return fmt.Errorf("%w; the teacher must have the policy's tokenizer", err)
		} else if err != nil {
			return err
		}
	}
	_, err := t.ask(ctx, trialPrompt(t.policy, 0))
	return err
}

// ask returns the log-probabilities of the tokens of a text after the first.
func (t *Teacher) ask(ctx context.Context, ids []int32) ([]float32, error) {
	q := order{Model: t.server.base, Prompt: [][]int32{ids}, N: 1, Temperature: 1, TopP: 1, RepetitionPenalty: 1, TokenIDs: true, Echo: true}
	var a answered
	if err := t.server.call(ctx, t.server.limit, http.MethodPost, "/v1/completions", q, &a); err != nil {
		return nil, err
	}
	switch {
	case a.Model != q.Model:
		return nil, fmt.Errorf("the response is from model %q, want %q", a.Model, q.Model)
	case len(a.Choices) != 1:
		return nil, fmt.Errorf("the response has %d choices, want 1", len(a.Choices))
	}
	c := a.Choices[0]
	switch {
	case !slices.Equal(c.PromptIDs, ids):
		return nil, fmt.Errorf("the response is for a prompt of %d tokens, want these %d; use a server that supports return_token_ids, such as rltrain serve or vLLM", len(c.PromptIDs), len(ids))
	case c.LogProbs == nil || len(c.LogProbs.Values) != len(ids):
		return nil, errors.New("the response does not have a log-prob of each token of the prompt; use a server that supports echo with logprobs and max_tokens 0, such as rltrain serve or vLLM")
	}
	logs := make([]float32, len(ids)-1)
	for i, value := range c.LogProbs.Values[1:] {
		if value == nil || math.IsNaN(*value) || *value < leastLogProb || *value > 1e-3 {
			return nil, fmt.Errorf("token %d of the prompt has an impossible log-prob", i+2)
		}
		logs[i] = float32(*value)
	}
	return logs, nil
}

// Rate sets Teacher of trajectories. While the server fails in a way that may pass, it asks again, until ctx ends.
func (t *Teacher) Rate(ctx context.Context, all []*rl.Trajectory) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		warning, err error
		done         bool
	}
	results, slots := make(chan result), make(chan struct{}, t.config.Concurrency)
	for _, x := range all {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := t.rate(ctx, x, func(warning error) { results <- result{warning: warning} })
			results <- result{err: err, done: true}
		}()
	}
	var failed error
	warned := false
	for waits := len(all); waits > 0; {
		r := <-results
		switch {
		case r.done:
			waits--
			if r.err != nil && failed == nil {
				failed = r.err
				stop()
			}
		case failed == nil && !warned:
			warned = true
			t.config.Warn("warning: check the teacher %s: %v; the step waits and asks it again", t.config.URL, r.warning)
		}
	}
	if failed != nil && ctx.Err() == nil {
		return fmt.Errorf("teacher %s: %w", t.config.URL, failed)
	}
	return failed
}

// mostPause bounds the time before a retry.
const mostPause = time.Minute

// rate sets Teacher of a trajectory.
func (t *Teacher) rate(ctx context.Context, x *rl.Trajectory, warn func(error)) error {
	logProbs := make([]float32, len(x.Tokens))
	for from, ids := range x.Contexts() {
		for pause := t.config.Pause; ; pause = min(2*pause, mostPause) {
			logs, err := t.ask(ctx, ids)
			if err == nil {
				copy(logProbs[from+1:], logs)
				break
			}
			if ctx.Err() != nil || !passing(err) {
				return err
			}
			warn(err)
			if err := transfer.Wait(ctx, pause); err != nil {
				return err
			}
		}
	}
	x.Teacher = logProbs
	return nil
}
