package openenv

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

// split is tasks of a server's list: size of them, from the first.
type split struct {
	name        string
	first, size int
}

// listTasks reads the lists of tasks that some servers have: a split of the type train is trained on, one of the type test or else
// validation evaluated. If there is one split, its last heldOut tasks are for evaluation, or a fifth of them if they are fewer.
func (s *Server) listTasks(ctx context.Context, heldOut int) (map[envs.Part]split, error) {
	body, status, err := s.fetch(ctx, http.MethodGet, "/list_environments", nil)
	names, _ := body.([]any)
	if err != nil || status != http.StatusOK || len(names) != 1 {
		return nil, nil // an older server
	}
	name, _ := names[0].(string)
	path := "/" + url.PathEscape(name)
	body, status, err = s.fetch(ctx, http.MethodGet, path+"/splits", nil)
	list, ok := body.([]any)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotImplemented || status == http.StatusNotFound:
		return nil, nil
	case status != http.StatusOK || !ok:
		return nil, fmt.Errorf("splits: status %d and no list", status)
	}
	found := map[string]split{} // by type
	for _, one := range list {
		described, _ := one.(dataset.Object)
		kind, of := textOf(described, "type"), split{name: textOf(described, "name")}
		if _, ok := found[kind]; ok {
			continue
		}
		body, status, err := s.fetch(ctx, http.MethodPost, path+"/num_tasks", map[string]string{"split": of.name})
		if err != nil {
			return nil, err
		}
		count, _ := body.(dataset.Object)
		n, _ := count.Get("num_tasks")
		size, ok := n.(int64)
		if status != http.StatusOK || !ok || size < 1 || size > 1<<40 {
			return nil, fmt.Errorf("split %q: status %d and no number of tasks above 0", of.name, status)
		}
		of.size = int(size)
		found[kind] = of
	}
	return parted(found, heldOut)
}

// parted are the parts of the splits of a server.
func parted(found map[string]split, heldOut int) (map[envs.Part]split, error) {
	if len(found) == 0 {
		return nil, nil
	}
	train, trains := found["train"]
	eval, evals := found["test"]
	if !evals {
		eval, evals = found["validation"]
	}
	if trains && evals {
		return map[envs.Part]split{envs.Train: train, envs.Eval: eval}, nil
	}
	if !trains {
		train = eval
	}
	held := heldOut
	if held < 1 || held >= train.size {
		held = train.size / 5
	}
	if held < 1 {
		return nil, fmt.Errorf("split %q: %d tasks are too few to hold some out for evaluation", train.name, train.size)
	}
	of := train
	of.first, of.size = train.size-held, held
	train.size -= held
	return map[envs.Part]split{envs.Train: train, envs.Eval: of}, nil
}

// Tasks is how many tasks of a part the server lists; 0 if it has no list.
func (s *Server) Tasks(part envs.Part) int { return s.tasks[asked(part)].size }

// Task is the data of reset for a task of a part, from 0.
func (s *Server) Task(part envs.Part, index int) dataset.Object {
	of := s.tasks[asked(part)]
	return dataset.Object{{Name: "split", Value: of.name}, {Name: "index", Value: int64(of.first + index)}}
}

// asked is the part whose tasks a part has.
func asked(part envs.Part) envs.Part {
	if part == envs.Eval {
		return envs.Eval
	}
	return envs.Train
}

// readAll reads a text of at most longestMessage bytes.
func readAll(r io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, longestMessage+1))
	if err == nil && len(text) > longestMessage {
		err = fmt.Errorf("longer than %d bytes", longestMessage)
	}
	return string(text), err
}
