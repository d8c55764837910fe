#!/bin/bash
cat > fizzbuzz.sh << 'END'
#!/bin/bash
for ((i = 1; i <= $1; i++)); do
    text=
    ((i % 3)) || text=fizz
    ((i % 5)) || text+=buzz
    echo "${text:-$i}"
done
END
