package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

const digitLabels = `{"labels":{"noul":["1","0"],"choice":["1","2","3"],"score":["7","8"]},"temperature":{"choice":2}}`

// deciding serves a small model with settings in decision.json. Its labels cannot be words, which have several tokens.
func deciding(t *testing.T, settings string) *running {
	dir := filepath.Join(t.TempDir(), "model")
	must.Do(t, policy.TinyChatModel(dir, 1, 32, 5))
	must.Do(t, os.WriteFile(filepath.Join(dir, decision.ConfigFile), []byte(settings), 0o644))
	return startModel(t, dir, Config{})
}

// TestDecisions compares answers with the model's log-probabilities of the labels after a prompt that is written out here.
func TestDecisions(t *testing.T) {
	s := deciding(t, digitLabels)
	status, text := s.ask(t, "/v1/systemone", `{"model":"tiny","state":"1+1","questions":{
		"sure":{"type":"noul","instructions":"2?","criteria":{"true":"yes","false":"no"}},
		"pick":{"type":"choice","criteria":{"a":"x","b":null,"c":null}},
		"much":{"type":"score","criteria":["no","all"]}}}`)
	expect.Require(t, status == http.StatusOK, "status %d: %s", status, text)
	got := must.Into[struct {
		Model   string
		Answers struct {
			Sure struct{ Noul float64 }
			Pick struct {
				Choice        string
				Probabilities map[string]float64
			}
			Much struct {
				Score         float64
				Legend        map[string]string
				Probabilities map[string]float64
			}
		}
		Usage map[string]int
	}](t, json.Unmarshal, []byte(text))
	tokens := 0
	// odds are the probabilities of one-token labels after a prompt.
	odds := func(prompt string, temperature float64, labels ...string) []float64 {
		ids := must.Get(s.base.Ask(prompt))(t)
		tokens += len(ids)
		out, sum := make([]float64, len(labels)), 0.0
		must.Do(t, s.engine.ask(t.Context(), func() error {
			for i, label := range labels {
				all, err := s.base.Score(t.Context(), [][]int32{ids}, [][]int32{must.Get(s.base.Tokenizer.EncodeRaw(label, false))(t)}, 1)
				if err != nil {
					return err
				}
				out[i] = math.Exp(float64(all[0].LogProbs[0]) / temperature)
				sum += out[i]
			}
			return nil
		}))
		for i := range out {
			out[i] /= sum
		}
		return out
	}
	near := func(what string, want, got float64) {
		expect.True(t, math.Abs(want-got) <= 1e-5, "%s: %v, want %v", what, got, want)
	}
	near("noul", odds("1+1\n\n2?\n1: yes\n0: no\nAnswer 1 or 0 only.", 1, "1", "0")[0], got.Answers.Sure.Noul)
	pick := odds("1+1\n\n1. a: x\n2. b\n3. c\nAnswer with the label of the option that fits best (1 to 3) only.", 2, "1", "2", "3")
	for i, option := range []string{"a", "b", "c"} {
		near(option, pick[i], got.Answers.Pick.Probabilities[option])
	}
	near("score", odds("1+1\n\n7. no\n8. all\nAnswer with the label of the level that fits best (7 to 8) only.", 1, "7", "8")[1], got.Answers.Much.Score)
	expect.Equal(t, map[string]string{"0": "no", "1": "all"}, got.Answers.Much.Legend)
	expect.Equal(t, map[string]int{"input_tokens": tokens, "output_tokens": 0}, got.Usage)
	expect.Equal(t, "tiny", got.Model)
}

func TestDecisionsRefused(t *testing.T) {
	s := deciding(t, digitLabels)
	question := `"questions":{"a":{"type":"noul"}}`
	for body, want := range map[string]string{
		`{"model":"tiny",` + question + `}`:                                                        "422 state is missing",
		`{"model":"tiny","state":3,` + question + `}`:                                              "422 state must be",
		`{"model":"tiny","state":"x"}`:                                                             "422 questions is missing",
		`{"model":"tiny","state":"x","questions":[]}`:                                              "422 questions must be an object",
		`{"model":"tiny","state":"x","questions":{}}`:                                              "422 questions is empty",
		`{"model":"tiny","state":"x","questions":{"a":{"type":"rank"}}}`:                           "422 question \\\"a\\\": type",
		`{"model":"tiny","state":"x","questions":{` + many(65) + `}}`:                              "422 questions must be an object of 1 to 64",
		`{"model":"tiny","state":"x",` + question + `,"top_p":1}`:                                  "422 top_p",
		`{"model":3,"state":"x",` + question + `}`:                                                 "422 model",
		`{"state":"x",` + question + `}`:                                                           "422 model is missing",
		`{"model":"tiny","state":"x",` + question + `,"assets":{"i":{"type":"image"}}}`:            "422 assets: the model reads no images",
		`{"model":"other","state":"x",` + question + `}`:                                           "404 model",
		`{"model":"tiny","state":"` + strings.Repeat("1", 9000) + `",` + question + `}`:            "400 question \\\"a\\\": the prompt has more than",
		`{"model":"tiny","state":"x","questions":{"a":{"type":"choice","criteria":` + wide + `}}}`: "422 question \\\"a\\\": the model reads at most 3",
		`[`: "422 the body is not",
	} {
		status, text := s.ask(t, "/v1/systemone", body)
		kind, words, _ := strings.Cut(want, " ")
		expect.True(t, fmt.Sprint(status) == kind && strings.Contains(text, words), "%.200s: %d %s, want %s", body, status, text, want)
	}
}

const wide = `{"1":null,"2":null,"3":null,"4":null}`

func many(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"%d":{"type":"noul"}`, i)
	}
	return strings.Join(all, ",")
}

// TestDecisionLabels: labels that a model cannot tell apart by one token are refused.
func TestDecisionLabels(t *testing.T) {
	for _, labels := range []string{`["Yes","No"]`, `["12","3"]`, `["1","1"]`} {
		s := deciding(t, `{"labels":{"noul":`+labels+`}}`)
		status, text := s.ask(t, "/v1/systemone", `{"model":"tiny","state":"x","questions":{"a":{"type":"noul"}}}`)
		expect.True(t, status == http.StatusBadRequest && strings.Contains(text, "are not different single tokens"), "%s: %d %s", labels, status, text)
	}
}

// TestDecisionsTogether: requests that are answered in one batch get what each gets alone, whatever their model; those
// whose client has gone, and those beyond the queue, get nothing.
func TestDecisionsTogether(t *testing.T) {
	s := deciding(t, digitLabels)
	dir := t.TempDir()
	adapter(t, s, dir, 1)
	s.config.MaxAdapters = 1
	must.Do(t, s.engine.ask(t.Context(), func() error { return s.load("other", dir) }))
	bodies := make([]string, 24)
	alone := make([]string, len(bodies))
	for i := range bodies {
		bodies[i] = fmt.Sprintf(`{"model":"%s","state":"%s","questions":{"a":{"type":"noul"},"b":{"type":"choice","criteria":{"x":null,"y":"%d"}}}}`, []string{"tiny", "other"}[i/3%2], strings.Repeat("1", i), i)
		_, alone[i] = s.ask(t, "/v1/systemone", bodies[i])
	}
	release := s.hold()
	queued := func(n int) {
		for have := -1; have < n; {
			s.engine.lock.Lock()
			have = len(s.engine.asked)
			s.engine.lock.Unlock()
			runtime.Gosched()
		}
	}
	var clients sync.WaitGroup
	for i, body := range bodies {
		clients.Go(func() {
			status, text := s.ask(t, "/v1/systemone", body)
			expect.True(t, status == http.StatusOK && closeNumbers(alone[i], text), "request %d together: %d %s, alone %s", i, status, text, alone[i])
		})
	}
	queued(len(bodies))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { queued(len(bodies) + 1); cancel() }()
	gone := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/systemone", strings.NewReader(bodies[0])))(t)
	expect.Fails(s.client.Do(gone))(t, "the client that left got an answer")
	s.engine.lock.Lock()
	s.engine.waiting += s.engine.most
	s.engine.lock.Unlock()
	status, _ := s.ask(t, "/v1/systemone", bodies[0])
	expect.Equal(t, http.StatusTooManyRequests, status)
	s.engine.lock.Lock()
	s.engine.waiting -= s.engine.most
	s.engine.lock.Unlock()
	release()
	clients.Wait()
	expect.True(t, s.engine.waiting == 0 && len(s.engine.asked) == 0, "%d requests still wait", s.engine.waiting)
}

var number = regexp.MustCompile(`-?[0-9]+\.[0-9e-]+`)

// closeNumbers compares texts whose numbers may differ by rounding.
func closeNumbers(want, got string) bool {
	a, b := number.FindAllString(want, -1), number.FindAllString(got, -1)
	if number.ReplaceAllString(want, "") != number.ReplaceAllString(got, "") || len(a) != len(b) {
		return false
	}
	for i := range a {
		x, _ := strconv.ParseFloat(a[i], 64)
		y, _ := strconv.ParseFloat(b[i], 64)
		if math.Abs(x-y) > 1e-5 {
			return false
		}
	}
	return len(a) > 0
}

// TestHead: a head answers its questions, and nothing else.
func TestHead(t *testing.T) {
	from := filepath.Join("..", "..", "..", "torch", "transformers")
	dir := t.TempDir()
	for _, name := range []string{"testdata/encoders/bert_odd/config.json", "testdata/encoders/bert_odd/model.safetensors", "tokenizer/testdata/wordpiece/tokenizer.json", "tokenizer/testdata/wordpiece/tokenizer_config.json"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), must.Get(os.ReadFile(filepath.Join(from, name)))(t), 0o644))
	}
	named := must.Get(jinja.ParseJSON([]byte(`{"sure":{"type":"noul"},"team":{"type":"choice","criteria":{"a":null,"b":null,"c":null}}}`)))(t).(*jinja.Dict)
	questions := must.Get(decision.ParseQuestions(named))(t)
	var direct string
	s := startServer(t, Config{Name: "head"}, func(c Config) (*Server, func(), error) {
		head, err := policy.NewClassifier(policy.Config{Dir: dir, Labels: policy.HeadLabels(questions), R: 2, Alpha: 4, Seed: 3})
		if err != nil {
			return nil, nil, err
		}
		p := policy.NewHeadDecider(head, questions)
		p.Asker.Temperature = map[string]float64{decision.Choice: 3}
		answers, err := p.Answer(t.Context(), []policy.Asked{must.Get(p.Ask("hello", questions))(t)})
		if err != nil {
			return nil, nil, err
		}
		direct = must.Get(jinja.JSON(answers[0]))(t)
		server, err := NewForHead(p, c)
		return server, p.Close, err
	})
	status, text := s.ask(t, "/v1/systemone", `{"model":"head","state":"hello","questions":{"sure":{"type":"noul"},"team":{"type":"choice","criteria":{"a":null,"b":null,"c":null}}}}`)
	got := must.Into[struct{ Answers json.RawMessage }](t, json.Unmarshal, []byte(text))
	expect.True(t, status == http.StatusOK && closeNumbers(strings.ReplaceAll(direct, " ", ""), string(got.Answers)), "%d %s, want %s", status, text, direct)
	for path, body := range map[string]string{
		"/v1/systemone":        `{"model":"head","state":"x","questions":{"team":{"type":"choice","criteria":{"a":null,"z":null}}}}`,
		"/v1/completions":      `{"model":"head","prompt":"x"}`,
		"/v1/chat/completions": `{"model":"head","messages":[{"role":"user","content":"x"}]}`,
	} {
		status, text := s.ask(t, path, body)
		expect.True(t, status == http.StatusBadRequest && strings.Contains(text, "question"), "%s: %d %s", path, status, text)
	}
	expect.Error(t, s.load("x", dir), "answers questions")
	_, text = s.ask(t, "/v1/models", "")
	expect.True(t, strings.Contains(text, `"id":"head"`), "%s", text)
	status, text = s.ask(t, "/metrics", "")
	expect.True(t, status == http.StatusOK && strings.Contains(text, `prompt_tokens_total{model="head"}`), "%d %s", status, text)
}
