package report

import (
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rltrain/internal/outfile"
)

// page is what report.html shows.
type page struct {
	Title    string
	Stage    string
	Facts    []Setting
	Inexact  []string
	Sections []Section
	Pictures []picture
	Last     Table
	Config   string
}

type picture struct {
	Name string
	Data template.URL
}

// About is what run.json says of a run.
type About struct {
	Title   string
	Stage   string // Supervised or Reinforced
	Facts   []Setting
	Inexact []string // why a resumed run may differ from one that never stopped
}

// WriteHTML writes dir/report.html, one page that needs no other file, about
// the run in dir: its About, what was measured (logs/eval_results.json,
// logs/comparison.json, and what rltrain eval left in eval/), the curves of
// logs/metrics.jsonl (drawn anew into plots/), the other pictures of plots/,
// and config.yaml. What is not there yet is left out. It returns the path of
// the page.
func WriteHTML(dir string, about About) (string, error) {
	p := page{Title: about.Title, Stage: about.Stage, Facts: about.Facts, Inexact: about.Inexact}
	for _, read := range []func(string, *page) error{readCurves, readScores, readPictures, readConfig} {
		if err := read(dir, &p); err != nil {
			return "", fmt.Errorf("report of %s: %w", dir, err)
		}
	}
	var b strings.Builder
	// Parsed here: a program that only prints its help must not pay for it.
	if err := template.Must(template.New("page").Parse(pageText)).Execute(&b, p); err != nil {
		return "", fmt.Errorf("report of %s: %w", dir, err)
	}
	path := filepath.Join(dir, "report.html")
	return path, outfile.Write(path, []byte(b.String()), 0o644)
}

func readCurves(dir string, p *page) error {
	rows, err := ReadMetrics(filepath.Join(dir, "logs", "metrics.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	last := map[string]string{}
	for _, row := range rows {
		for key, value := range row {
			if f, ok := number(value); ok {
				last[key] = fmt.Sprintf("%.6g", f)
			}
		}
	}
	p.Last.Headers = []string{"metric", "last value"}
	for key, value := range last {
		p.Last.Rows = append(p.Last.Rows, []string{key, value})
	}
	slices.SortFunc(p.Last.Rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })

	panels := Panels(p.Stage, rows)
	if len(panels) == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	return Curves(filepath.Join(dir, "plots", "curves.png"), panels)
}

func readScores(dir string, p *page) (err error) {
	p.Sections, err = sections(dir)
	return err
}

func readPictures(dir string, p *page) error {
	paths, err := filepath.Glob(filepath.Join(globQuote(dir), "plots", "*.png"))
	if err != nil {
		return err
	}
	evaluated, err := filepath.Glob(filepath.Join(globQuote(dir), EvalFolder, "plots", "*.png"))
	if err != nil {
		return err
	}
	own := len(paths)
	paths = append(paths, evaluated...)
	for i, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(filepath.Base(path), ".png")
		if i >= own {
			name += ", by rltrain eval"
		}
		p.Pictures = append(p.Pictures, picture{
			Name: name,
			Data: template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(data)),
		})
	}
	return nil
}

// globQuote keeps the characters of a folder's name from being a pattern.
func globQuote(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

func readConfig(dir string, p *page) error {
	data, err := os.ReadFile(filepath.Join(dir, "config.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	p.Config = string(data)
	return err
}

const pageText = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.2rem; border-bottom: 1px solid #ddd; padding-bottom: .2rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid #eee; vertical-align: top; font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; }
th { white-space: nowrap; }
img { max-width: 100%; display: block; margin: 1rem 0; }
pre { background: #f6f6f6; padding: 1rem; overflow: auto; }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
<table>{{range .Facts}}
<tr><th>{{.Name}}</th><td>{{.Value}}</td></tr>{{end}}
</table>
{{with .Inexact}}<p>A resumed run may differ from one that never stopped:</p>
<ul>{{range .}}
<li>{{.}}</li>{{end}}
</ul>
{{end}}{{define "table"}}<table>
<tr>{{range .Headers}}<th>{{.}}</th>{{end}}</tr>{{range .Rows}}
<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>{{end}}
</table>
{{end}}{{range .Sections}}{{if .Rows}}<h2>{{.Title}}</h2>
{{template "table" .Table}}{{end}}{{end}}{{range .Pictures}}<h2>{{.Name}}</h2>
<img alt="{{.Name}}" src="{{.Data}}">
{{end}}{{if .Last.Rows}}<h2>Metrics</h2>
{{template "table" .Last}}{{end}}{{with .Config}}<h2>Configuration</h2>
<pre>{{.}}</pre>
{{end}}</body>
</html>
`
