package transfer

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// furtherBy is the minimum progress of an attempt, in bytes, that resets the count of failures.
const furtherBy = 1 << 20

// Download is a file to receive into Path, which may have its beginning from an earlier process.
type Download struct {
	*Client
	Address string
	Path    string
	Hash    func(size int64) hash.Hash // its digest of the file's bytes is Sum; nil if no checksum is known
	Sum     string                     // in hexadecimal
	Source  string                     // who states Sum and Size, for errors: "the Hub"
	Size    int64                      // in bytes; -1 if unknown
	Limit   int64                      // maximum bytes if Size is unknown
	Timeout time.Duration              // how long the server may send nothing
	Refused func(*http.Response) error // the error of another status than 200 and 206
	Check   func(*http.Response) error // what is wrong with a response of status 200 or 206; nil checks nothing
	Advance func(n int64)              // receives progress in bytes; negative if bytes are discarded

	file      *os.File
	offset    int64  // bytes received
	best      int64  // the largest offset that counted as progress
	validator string // the strong ETag of the response that the bytes are from
}

// Receive downloads the missing bytes of the file, checks all of them and syncs them to disk. It removes a file whose
// checksum is wrong. The caller holds a lock.
func (d *Download) Receive(ctx context.Context) (err error) {
	if d.file, err = os.OpenFile(d.Path, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return err
	}
	defer d.file.Close()
	info, err := d.file.Stat()
	if err != nil {
		return err
	}
	d.offset = info.Size()
	d.Advance(d.offset)
	// Only a checksum can tell whether an earlier process left the correct beginning of the file.
	if d.Hash == nil || d.Size >= 0 && d.offset > d.Size {
		if err := d.restart(); err != nil {
			return err
		}
	}
	for {
		resumed := d.offset > 0
		if err := d.Retry(ctx, func() (bool, error) { return d.attempt(ctx) }); err != nil {
			return err
		}
		if d.Hash == nil {
			break
		}
		sum, err := d.sum()
		if err != nil {
			return fmt.Errorf("checking it: %w", err)
		}
		if sum == d.Sum {
			break
		}
		if err := d.restart(); err != nil {
			return err
		}
		if !resumed {
			_ = os.Remove(d.Path)
			return fmt.Errorf("the download has checksum %s, %s announces %s; it was removed: try again", sum, d.Source, d.Sum)
		}
	}
	return d.file.Sync()
}

// sum is the checksum of the received bytes.
func (d *Download) sum() (string, error) {
	h := d.Hash(d.offset)
	if _, err := io.Copy(h, io.NewSectionReader(d.file, 0, d.offset)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// restart discards the partial file.
func (d *Download) restart() error {
	if d.offset == 0 {
		return nil
	}
	d.Advance(-d.offset)
	d.offset, d.validator = 0, ""
	return d.file.Truncate(0)
}

// attempt requests the missing bytes once.
func (d *Download) attempt(ctx context.Context) (further bool, err error) {
	if d.offset == d.Size {
		return false, d.file.Truncate(d.Size)
	}
	header := http.Header{}
	if d.offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", d.offset))
		if d.validator != "" {
			header.Set("If-Range", d.validator)
		}
	}
	err = d.Call(ctx, http.MethodGet, d.Address, header, d.Timeout, d.accept)
	if further = d.offset >= d.best+furtherBy; further {
		d.best = d.offset
	}
	return further, err
}

// accept reads the bytes of a response.
func (d *Download) accept(r *http.Response) error {
	from := fmt.Sprintf("bytes %d-", d.offset)
	if d.Check != nil && (r.StatusCode == http.StatusOK || r.StatusCode == http.StatusPartialContent) {
		if err := d.Check(r); err != nil {
			return err
		}
	}
	switch {
	case r.StatusCode == http.StatusPartialContent && strings.HasPrefix(r.Header.Get("Content-Range"), from):
	case r.StatusCode == http.StatusOK:
		if err := d.restart(); err != nil {
			return err
		}
	case r.StatusCode == http.StatusPartialContent, d.offset > 0 && r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		if err := d.restart(); err != nil {
			return err
		}
		return Temporary{Err: fmt.Errorf("%s sent another part than asked for", r.Request.URL.Host)}
	default:
		return d.Refused(r)
	}
	if tag := r.Header.Get("ETag"); !strings.HasPrefix(tag, "W/") {
		d.validator = tag
	}
	return d.read(r)
}

// read appends the body of a response to the file.
func (d *Download) read(r *http.Response) error {
	buffer := make([]byte, 256<<10)
	for {
		n, err := r.Body.Read(buffer)
		if d.Size < 0 && d.offset+int64(n) > d.Limit {
			return fmt.Errorf("%s sends more than %d bytes of a file of unknown size", r.Request.URL.Host, d.Limit)
		}
		if d.Size >= 0 && d.offset+int64(n) > d.Size {
			return fmt.Errorf("%s sends more than the %d bytes that %s announces", r.Request.URL.Host, d.Size, d.Source)
		}
		if _, err := d.file.WriteAt(buffer[:n], d.offset); err != nil {
			return err
		}
		d.offset += int64(n)
		d.Advance(int64(n))
		switch {
		case err == io.EOF && d.offset < d.Size:
			return Temporary{Err: fmt.Errorf("the connection ended after %d of %d bytes", d.offset, d.Size)}
		case err == io.EOF:
			d.Size = d.offset
			return nil
		case err != nil:
			return err
		}
	}
}
