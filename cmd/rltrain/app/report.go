package app

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// comparisonFile is where a comparison goes unless somebody says otherwise.
const comparisonFile = "comparison.html"

func reportCommand() *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "write report.html, one page about a training run, or compare several",
		ArgsUsage: "DIR...",
		Description: `The page stands in the folder of the run and needs no other file and no network. Of several folders it is one page
with their curves over each other. With --watch the page is served on this machine while the run goes on.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "file to write", DefaultText: "report.html in DIR; of several runs " + comparisonFile + " here"},
			&cli.BoolFlag{Name: "watch", Usage: "serve the page on 127.0.0.1 instead, and show what is new"},
			&cli.IntFlag{Name: "port", Usage: "of --watch; 0 = any that is free"},
		},
		Action: reportRuns,
	}
}

func reportRuns(c *cli.Context) error {
	dirs := c.Args().Slice()
	switch {
	case c.IsSet("port") && !c.Bool("watch"):
		return shared.UsageErrorf("--port: applies only with --watch")
	case c.IsSet("output") && c.Bool("watch"):
		return shared.UsageErrorf("--output: does not apply with --watch, which writes nothing")
	case c.Int("port") < 0 || c.Int("port") > 65535:
		return shared.UsageErrorf("--port: %d is out of range; it must be 0 to 65535", c.Int("port"))
	}
	if _, err := pageOf(dirs, true); err != nil { // what is no run is found first
		return err
	}
	if c.Bool("watch") {
		return watch(c, dirs)
	}
	path := c.String("output")
	switch {
	case path == "" && len(dirs) == 1:
		record, err := run.ReadRun(dirs[0])
		if err != nil {
			return err
		}
		if path, err = report.WriteHTML(dirs[0], record.About()); err != nil {
			return err
		}
	default:
		if path == "" {
			path = comparisonFile
		}
		page, err := pageOf(dirs, false)
		if err == nil {
			err = outfile.Write(path, page, 0o644)
		}
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(c.App.Writer, path)
	return err
}

// pageOf is the page about the runs in some folders.
func pageOf(dirs []string, watched bool) ([]byte, error) {
	var runs []report.Compared
	for _, dir := range dirs {
		record, err := run.ReadRun(dir)
		if err != nil {
			return nil, err
		}
		runs = append(runs, report.Compared{Dir: dir, Name: filepath.Base(filepath.Clean(dir)), About: record.About()})
	}
	if len(runs) == 1 {
		return report.HTML(dirs[0], runs[0].About, watched)
	}
	nameApart(runs)
	return report.CompareHTML(runs, watched)
}

// nameApart gives runs whose folders have the same name longer ones, and at last numbers.
func nameApart(runs []report.Compared) {
	count := func() map[string]int {
		n := map[string]int{}
		for _, r := range runs {
			n[r.Name]++
		}
		return n
	}
	n := count()
	for i := range runs {
		if r := &runs[i]; n[r.Name] > 1 {
			if abs, err := filepath.Abs(r.Dir); err == nil {
				r.Name = filepath.Join(filepath.Base(filepath.Dir(abs)), r.Name)
			}
		}
	}
	n = count()
	for i := range runs {
		if r := &runs[i]; n[r.Name] > 1 {
			r.Name += " (" + strconv.Itoa(i+1) + ")"
		}
	}
}

// watch serves the page until the command is stopped.
func watch(c *cli.Context, dirs []string) error {
	listener, err := (&net.ListenConfig{}).Listen(c.Context, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Int("port"))))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	server := &http.Server{Handler: watched(dirs, listener.Addr().String()), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(c.Context, func() { _ = server.Close() })
	defer stop()
	if _, err := fmt.Fprintf(c.App.Writer, "Watching on http://%s/ until it is stopped with Ctrl-C\n", listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// watched answers with the page, and at /stamp with what changes when it does. It answers those who ask for this machine
// only: a page from elsewhere that a browser shows must not read it under another name.
func watched(dirs []string, address string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		page, err := pageOf(dirs, true)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(page) // the browser may be gone
	})
	mux.HandleFunc("GET /stamp", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		_, _ = fmt.Fprintln(w, stamp(dirs))
	})
	_, port, _ := net.SplitHostPort(address)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != address && r.Host != net.JoinHostPort("localhost", port) {
			http.Error(w, "the page is for this machine", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// stamp changes when a file does that a page is made of.
func stamp(dirs []string) string {
	h := fnv.New64a()
	for _, dir := range dirs {
		for _, name := range []string{"run.json", "config.yaml", "logs/metrics.jsonl", "logs/completions.jsonl", "logs/training_log.txt", "logs/eval_results.json"} {
			info, err := os.Stat(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				fmt.Fprintln(h, name, info.Size(), info.ModTime().UnixNano())
			}
		}
	}
	return strconv.FormatUint(h.Sum64(), 36)
}
