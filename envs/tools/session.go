package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/sandbox"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/words"
)

// maxResult is how many bytes of a result a model sees, and maxReply how many a tool may send.
const (
	maxResult = 8 << 10
	maxReply  = 1 << 20
)

// Set is the tools of a run.
type Set struct {
	tools   []Tool
	timeout time.Duration
	client  *http.Client
	box     *sandbox.Sandbox // nil unless a tool runs Python
	python  *sandbox.Language
}

// Open reads a file of tools and checks that their programs exist. timeout applies to each call. Without a working sandbox,
// a tool that runs Python is an error unless unsafe. Close it after use.
func Open(ctx context.Context, path string, timeout time.Duration, unsafe bool) (*Set, error) {
	list, err := Read(path)
	if err != nil {
		return nil, err
	}
	s := &Set{timeout: timeout, client: &http.Client{
		Timeout: timeout,
		// A tool's server is the one that the user named.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, t := range list {
		line, isCommand := strings.CutPrefix(t.Run, command)
		where, ofServer := strings.CutPrefix(t.Run, modelContext)
		var err error
		found := []Tool{t}
		switch {
		case ofServer:
			found, err = s.described(ctx, where, t)
		case isCommand:
			_, err = program.NewSession(line, timeout)
		case t.Run == python && s.box == nil:
			err = s.openSandbox(ctx, unsafe)
		}
		if err != nil {
			_ = s.Close()
			return nil, fmt.Errorf("%s: tool %s: run: %w", path, cmp.Or(t.Name, t.Run), err)
		}
		for _, one := range found {
			if s.find(one.Name) >= 0 {
				_ = s.Close()
				return nil, fmt.Errorf("%s: a second tool %s", path, words.Quote(one.Name))
			}
			s.tools = append(s.tools, one)
		}
	}
	return s, nil
}

// described asks an MCP server for its description of tools.
func (s *Set) described(ctx context.Context, where string, t Tool) ([]Tool, error) {
	c, err := s.connect(ctx, where)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return c.list(ctx, t)
}

// find returns the index of a tool, or −1.
func (s *Set) find(name string) int {
	return slices.IndexFunc(s.tools, func(t Tool) bool { return t.Name == name })
}

func (s *Set) openSandbox(ctx context.Context, unsafe bool) (err error) {
	if s.box, err = sandbox.Open(unsafe); err != nil {
		return err
	}
	s.python, err = s.box.Find(ctx, sandbox.Python, "")
	return err
}

// Close releases the sandbox. Sessions are closed by themselves.
func (s *Set) Close() error {
	if s.box == nil {
		return nil
	}
	return s.box.Close()
}

// Descriptions are the tools as chat templates read them.
func (s *Set) Descriptions() []any {
	all := make([]any, len(s.tools))
	for i, t := range s.tools {
		all[i] = t.Described()
	}
	return all
}

// Session is the tools of one episode: each program that it calls runs once for it, from the first call to Close. Calls take
// turns.
type Session struct {
	set *Set

	lock     sync.Mutex
	programs map[string]*program.Program // by command line
	servers  map[string]*mcpServer       // by what follows mcp:
	closed   bool
}

// Begin returns a session, which has not started any program yet.
func (s *Set) Begin() *Session {
	return &Session{set: s, programs: map[string]*program.Program{}, servers: map[string]*mcpServer{}}
}

// Close ends the programs of the session.
func (s *Session) Close() error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.closed = true
	for _, p := range s.programs {
		p.Close()
	}
	for _, c := range s.servers {
		c.Close()
	}
	clear(s.programs)
	clear(s.servers)
	return nil
}

// Call runs a call and returns its result as text that a model can be shown. The error says, to the model, why there is none;
// if ctx has ended it is that of ctx.
func (s *Session) Call(ctx context.Context, call Call) (string, error) {
	i := s.set.find(call.Name)
	if i < 0 {
		names := make([]string, len(s.set.tools))
		for i, t := range s.set.tools {
			names[i] = t.Name
		}
		return "", fmt.Errorf("there is no tool %s; tools are %s", words.Quote(call.Name), words.List(names))
	}
	t := s.set.tools[i]
	arguments, err := t.arguments(call.Arguments)
	if err != nil {
		return "", err
	}
	var text string
	line, isCommand := strings.CutPrefix(t.Run, command)
	where, ofServer := strings.CutPrefix(t.Run, modelContext)
	switch {
	case ofServer:
		text, err = s.callMCP(ctx, where, t.Name, arguments)
	case isCommand:
		text, err = s.ask(ctx, line, t.Name, arguments)
	case t.Run == python:
		text, err = s.set.runPython(ctx, arguments)
	default:
		text, err = s.set.post(ctx, t.Run, arguments)
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return Shown(text, err)
}

// Shown is a tool's result, or the error in its place, as a model sees it: its beginning, without bytes that tokenizers refuse and
// special tokens of chat templates.
func Shown(text string, err error) (string, error) {
	if err != nil {
		return "", errors.New(shownAs(err.Error()))
	}
	return shownAs(text), nil
}

func shownAs(text string) string {
	rest := ""
	if n := len(text); n > maxResult {
		text, rest = text[:maxResult], fmt.Sprintf("\n[cut after %d of %d bytes]", maxResult, n)
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	return envs.Quoted(strings.ReplaceAll(text, "\x00", "\uFFFD")) + rest
}

// question is what a program reads, on a line.
type question struct {
	ID        uint64         `json:"id"`
	Tool      string         `json:"tool"`
	Arguments dataset.Object `json:"arguments"`
}

// ask sends a call to the session's process of a command line.
func (s *Session) ask(ctx context.Context, line, name string, arguments dataset.Object) (string, error) {
	s.lock.Lock()
	p := s.programs[line]
	var err error
	if s.closed {
		err = errors.New("the episode is over")
	} else if p == nil {
		if p, err = program.NewSession(line, s.set.timeout); err == nil {
			s.programs[line] = p
		}
	}
	s.lock.Unlock()
	if err != nil {
		return "", err
	}
	texts, errs := program.Ask(ctx, p, 1, func(_ int, id uint64) any { return question{id, name, arguments} }, readAnswer)
	return texts[0], errs[0]
}

// readAnswer reads a line of a program: {"id", "result"} or {"id", "error"}.
func readAnswer(line []byte) (program.Answer[string], error) {
	var read struct {
		ID     *uint64         `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  string          `json:"error"`
	}
	if err := json.Unmarshal(line, &read); err != nil || read.ID == nil {
		return program.Answer[string]{}, fmt.Errorf(`the tool wrote %s; want {"id":7,"result":"…"}`, words.QuoteTo(string(line), 100))
	}
	a := program.Answer[string]{ID: *read.ID}
	switch {
	case read.Error != "":
		a.Err = errors.New(read.Error)
	case read.Result == nil:
		a.Err = errors.New("the tool gave no result")
	default:
		a.Value = textOf(read.Result)
	}
	return a, nil
}

// textOf returns the text of a JSON value: a string as it is, anything else as JSON.
func textOf(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil && string(value) != "null" {
		return text
	}
	return string(value)
}

// post sends the arguments of a call to a server.
func (s *Set) post(ctx context.Context, address string, arguments dataset.Object) (string, error) {
	body, err := arguments.MarshalJSON()
	if err != nil {
		return "", err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(string(body)))
	if err != nil {
		return "", err
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := s.client.Do(q)
	if err != nil {
		return "", fmt.Errorf("the tool's server did not answer: %w", errors.Unwrap(err)) // the error names the address, which is none of the model's business
	}
	defer r.Body.Close()
	data, err := io.ReadAll(io.LimitReader(r.Body, maxReply+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("reading the tool's answer: %w", err)
	case len(data) > maxReply:
		return "", fmt.Errorf("the tool's answer is longer than %d bytes", maxReply)
	case r.StatusCode < 200 || r.StatusCode > 299:
		return "", fmt.Errorf("status %d: %s", r.StatusCode, words.QuoteTo(string(data), 200))
	case json.Valid(data):
		return textOf(data), nil
	}
	return string(data), nil
}

// runPython runs a program in the sandbox and returns what it prints.
func (s *Set) runPython(ctx context.Context, arguments dataset.Object) (string, error) {
	value, _ := arguments.Get("code")
	code, ok := value.(string)
	if !ok {
		return "", errors.New("argument code is no text")
	}
	limits := sandbox.Usual()
	limits.Wall = s.timeout
	o, err := s.box.RunText(ctx, limits, s.python, code, nil)
	if err != nil {
		return "", err
	}
	switch o.Status {
	case sandbox.OK:
		return o.Stdout, nil
	case sandbox.Failed:
		return "", fmt.Errorf("%s%s", o.Stdout, o.Stderr)
	case sandbox.SandboxError:
		return "", errors.New(o.Error)
	}
	return "", fmt.Errorf("the program ended by %s", o.Status)
}
