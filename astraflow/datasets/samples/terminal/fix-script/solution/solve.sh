#!/bin/bash
cat > greet.sh << 'END'
#!/bin/bash
[ $# -gt 0 ] || set -- world
for name in "$@"; do
    echo "Hello, $name"
done
END
