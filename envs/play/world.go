package play

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/bank"
	"github.com/rltrain/rltrain/envs/openenv"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/words"
)

// What names of environments begin with.
const (
	command = "cmd:"
	openEnv = "openenv:"
)

// mostWeight bounds the weights of environments.
const mostWeight = 1000

// world is an environment of the run.
type world struct {
	options *options
	option  string // that names it
	weight  float64
	name    string
	kind    string // its name if there are several, else ""
	timeout time.Duration
	asText  bool // for models without a chat template
	system  string

	line string // of a program

	address string // of a server
	server  *openenv.Server
	tools   []any // of the server's environment, as chat templates read them; nil = its actions are no tool calls
	format  *tools.Format
	free    bool // every message is an action
	tasks   *bank.Bank[listed]

	lock sync.Mutex
	idle []*program.Program // processes without an episode
}

// listed is a task of a server's list.
type listed struct {
	part  envs.Part
	index int
}

// worlds are the environments that the options name, which are not opened.
func (o *options) worlds() (all []*world, err error) {
	w, err := o.world("env", o.Env, 1)
	if err != nil {
		return nil, err
	}
	all = append(all, w)
	for _, one := range o.Mix {
		at := strings.LastIndex(one, "=")
		if at < 1 {
			return nil, envs.OptionErrorf("env_mix", "%s: want ENV=WEIGHT", words.Quote(one))
		}
		weight, err := strconv.ParseFloat(one[at+1:], 64)
		if err != nil || !(weight > 0 && weight <= mostWeight) {
			return nil, envs.OptionErrorf("env_mix", "%s: the weight must be a number above 0, at most %d", words.Quote(one), mostWeight)
		}
		if w, err = o.world("env_mix", one[:at], weight); err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	if len(all) > 1 {
		seen := map[string]int{}
		for _, w := range all {
			w.kind = w.name
			if seen[w.name]++; seen[w.name] > 1 {
				w.kind += "_" + strconv.Itoa(seen[w.name])
			}
		}
	}
	return all, nil
}

// world is the environment of a name.
func (o *options) world(option, text string, weight float64) (*world, error) {
	w := &world{options: o, option: option, weight: weight, timeout: time.Duration(o.Timeout * float64(time.Second)), free: true}
	var err error
	if line, ok := strings.CutPrefix(text, command); ok {
		w.line = line
		var list []string
		if list, err = program.Words(line); err == nil {
			w.name = nameOf(list)
		}
	} else if address, ok := strings.CutPrefix(text, openEnv); ok {
		var base string
		w.address = address
		if base, err = openenv.Address(address); err == nil {
			u, _ := url.Parse(base)
			w.name = u.Host + u.Path
		}
	} else {
		err = fmt.Errorf("%s: want cmd:PROGRAM or openenv:ws://HOST:PORT", words.Quote(text))
	}
	if err != nil {
		return nil, &envs.OptionError{Option: option, Err: err}
	}
	return w, nil
}

// nameOf names a command by its first word that is a script, else by its program.
func nameOf(list []string) string {
	base := func(word string) string { return strings.TrimSuffix(path.Base(word), path.Ext(word)) }
	for _, word := range list[1:] {
		if path.Ext(word) != "" && !strings.HasPrefix(word, "-") {
			return base(word)
		}
	}
	return base(list[0])
}

// open checks that the program exists, or asks the server what its environment is.
func (w *world) open(s envs.Setup) (err error) {
	w.asText = s.Text
	if o := w.options; o.SystemPrompt != "" {
		if w.system, err = bank.Instruction(o.SystemPrompt); err != nil {
			return err
		}
	}
	if w.address == "" {
		_, err = program.NewSession(w.line, w.timeout)
		return err
	}
	ctx := s.Context
	if ctx == nil {
		ctx = context.Background()
	}
	if w.server, err = openenv.Open(ctx, w.address, w.timeout, s.HeldOut); err != nil {
		return err
	}
	w.tools, w.free = w.server.Tools(), w.server.TakesText()
	if w.tools != nil {
		if err := w.speak(s); err != nil {
			return fmt.Errorf("%s: %w", w.address, err)
		}
	}
	if w.server.Tasks(envs.Train) == 0 {
		return nil
	}
	part := func(of envs.Part) bank.Source[listed] {
		source := bank.Source[listed]{Path: w.address, All: make([]listed, w.server.Tasks(of))}
		for i := range source.All {
			source.All[i] = listed{of, i}
		}
		return source
	}
	w.tasks, err = bank.Divide(s.Seed, "task", part(envs.Train), part(envs.Eval), nil, 0, func(l listed) string { return fmt.Sprint(l) })
	return err
}

// speak sets the format of the model's tool calls.
func (w *world) speak(s envs.Setup) error {
	switch {
	case w.asText:
		return errors.New("the environment has tools, which need a chat template; pass --chat-template FILE, or use another model")
	case s.ToolTemplate != nil && *s.ToolTemplate == "":
		return errors.New("the environment has tools, which the model's chat template does not describe; pass --chat-template FILE, or use another model")
	case s.ToolTemplate == nil: // the options are checked
		w.format = tools.JSON
	default:
		w.format = tools.FormatOf(*s.ToolTemplate)
	}
	return nil
}

// take returns a process for an episode.
func (w *world) take() (*program.Program, error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if n := len(w.idle); n > 0 {
		p := w.idle[n-1]
		w.idle = w.idle[:n-1]
		return p, nil
	}
	return program.NewSession(w.line, w.timeout)
}

// give takes a process back whose episode is over.
func (w *world) give(p *program.Program) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.idle = append(w.idle, p)
}

// role is the role of the messages that answer the model.
func (w *world) role() string {
	if w.tools != nil {
		return envs.RoleTool
	}
	return envs.RoleUser
}
