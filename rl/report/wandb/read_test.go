package wandb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/rltrain/rltrain/internal/wire"
)

// Read reads the records of a file and verifies its checksums.
func Read(data []byte) ([]wire.Message, error) {
	if !bytes.HasPrefix(data, header) {
		return nil, errors.New("not a W&B file: wrong header")
	}
	var records []wire.Message
	var record wire.Message
	for at := len(header); at < len(data); {
		if left := blockSize - at%blockSize; left < chunkHead {
			at += left
			continue
		}
		if len(data)-at < chunkHead {
			return records, fmt.Errorf("byte %d: truncated chunk", at)
		}
		sum, n, kind := binary.LittleEndian.Uint32(data[at:]), int(binary.LittleEndian.Uint16(data[at+4:])), data[at+6]
		if n > len(data)-at-chunkHead {
			return records, fmt.Errorf("byte %d: truncated chunk", at)
		}
		part := data[at+chunkHead : at+chunkHead+n]
		if crc32.Update(crc32.ChecksumIEEE([]byte{kind}), crc32.IEEETable, part) != sum {
			return records, fmt.Errorf("byte %d: wrong checksum of a chunk", at)
		}
		at += chunkHead + n
		record = append(record, part...)
		if kind == whole || kind == last {
			records, record = append(records, record), nil
		}
	}
	if record != nil {
		return records, errors.New("the last record is truncated")
	}
	return records, nil
}
